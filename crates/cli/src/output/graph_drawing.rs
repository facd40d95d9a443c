//! Drawings of what waits for what: for Graphviz and for Mermaid.
//!
//! Names come from other clients, so no name becomes a part of the drawing's language: nodes have numbers, and texts are
//! escaped.

use crate::output::graph_text::holder_name;
use crate::output::printable::printable;
use crate::output::session_report::process;
use leasehold::inspect::{WaitGraph, WaitHolder, WaitInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// What is drawn.
#[derive(Default)]
pub(crate) struct Drawing {
    pub(crate) nodes: Vec<Node>,
    numbers: BTreeMap<(Shape, String), usize>,
    /// From, to, whether it is a wait, and whether it belongs to a cycle.
    pub(crate) edges: BTreeSet<(usize, usize, bool, bool)>,
}

pub(crate) struct Node {
    pub(crate) shape: Shape,
    /// Without what a terminal would interpret.
    pub(crate) label: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    Lock,
    Process,
}

impl Drawing {
    pub(crate) fn new(graph: &WaitGraph) -> Self {
        let mut drawing = Self::default();
        let mut in_cycles: BTreeSet<(&str, &str)> = BTreeSet::new();
        let mut held_in_cycles: BTreeSet<(&str, &str)> = BTreeSet::new();
        for cycle in &graph.cycles {
            for (at, wait) in cycle.waits.iter().enumerate() {
                let next = &cycle.waits[(at + 1) % cycle.waits.len()];
                in_cycles.insert((&wait.waiter, wait.lock.as_str()));
                held_in_cycles.insert((&next.waiter, wait.lock.as_str()));
            }
        }
        for wait in &graph.waits {
            let name = wait.lock.as_str();
            let waiter = drawing.waiter(wait);
            let lock_key = format!("{} {name}", wait.kind.as_str());
            let lock = drawing.node(Shape::Lock, lock_key, || printable(name));
            drawing.edges.insert((waiter, lock, true, in_cycles.contains(&(&wait.waiter, name))));
            for holder in &wait.holders {
                let known = graph.waits.iter().filter(|wait| holder.waiters.contains(&wait.waiter));
                let known: Vec<_> = known.collect();
                for waiter in &known {
                    let node = drawing.waiter(waiter);
                    let is_in_cycle = held_in_cycles.contains(&(&waiter.waiter, name));
                    drawing.edges.insert((lock, node, false, is_in_cycle));
                }
                if known.is_empty() {
                    let node = drawing.holder(holder);
                    drawing.edges.insert((lock, node, false, false));
                }
            }
        }
        drawing
    }

    fn waiter(&mut self, wait: &WaitInfo) -> usize {
        let part = wait.waiter.rsplit('/').next().unwrap_or_default();
        let label = || match wait.process.as_deref() {
            Some(about) => format!("{} {}", process(about), printable(part)),
            None => printable(&wait.waiter),
        };
        self.node(Shape::Process, wait.waiter.clone(), label)
    }

    fn holder(&mut self, holder: &WaitHolder) -> usize {
        let key = holder.session.map_or_else(|| format!("{:?}", holder.fence), |session| session.to_string());
        self.node(Shape::Process, key, || holder_name(holder))
    }

    fn node(&mut self, shape: Shape, key: String, label: impl FnOnce() -> String) -> usize {
        *self.numbers.entry((shape, key)).or_insert_with(|| {
            self.nodes.push(Node { shape, label: label() });
            self.nodes.len() - 1
        })
    }
}

/// For Graphviz.
pub(crate) fn dot(graph: &WaitGraph) -> String {
    let drawing = Drawing::new(graph);
    let mut text = "digraph waits {\n  rankdir=LR;\n".to_owned();
    for (number, node) in drawing.nodes.iter().enumerate() {
        let shape = if node.shape == Shape::Lock { "box" } else { "ellipse" };
        let label = node.label.replace('\\', "\\\\").replace('"', "\\\"");
        line(&mut text, format_args!("  n{number} [shape={shape}, label=\"{label}\"];"));
    }
    for (from, to, is_wait, is_in_cycle) in &drawing.edges {
        let label = if *is_wait { "waits for" } else { "held by" };
        let color = if *is_in_cycle { ", color=red, fontcolor=red" } else { "" };
        line(&mut text, format_args!("  n{from} -> n{to} [label=\"{label}\"{color}];"));
    }
    text.push_str("}\n");
    text
}

/// For Mermaid.
pub(crate) fn mermaid(graph: &WaitGraph) -> String {
    let drawing = Drawing::new(graph);
    let mut text = "flowchart LR\n".to_owned();
    for (number, node) in drawing.nodes.iter().enumerate() {
        let label = mermaid_text(&node.label);
        match node.shape {
            Shape::Lock => line(&mut text, format_args!("  n{number}[\"{label}\"]")),
            Shape::Process => line(&mut text, format_args!("  n{number}([\"{label}\"])")),
        }
    }
    let mut red = Vec::new();
    for (at, (from, to, is_wait, is_in_cycle)) in drawing.edges.iter().enumerate() {
        let label = if *is_wait { "waits for" } else { "held by" };
        line(&mut text, format_args!("  n{from} -- {label} --> n{to}"));
        if *is_in_cycle {
            red.push(at.to_string());
        }
    }
    if !red.is_empty() {
        line(&mut text, format_args!("  linkStyle {} stroke:red", red.join(",")));
    }
    text
}

/// A text between quotes: what is no letter, digit, space or harmless sign becomes the number of its character.
fn mermaid_text(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        if c.is_alphanumeric() || matches!(c, ' ' | '-' | '.' | '/' | ':' | ',' | '=') {
            shown.push(c);
        } else {
            write!(shown, "#{};", u32::from(c)).expect("writing to a string cannot fail");
        }
    }
    shown
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leaves_its_quotes() {
        assert_eq!(mermaid_text("a\"]; end`<b>#"), "a#34;#93;#59; end#96;#60;b#62;#35;");
    }
}
