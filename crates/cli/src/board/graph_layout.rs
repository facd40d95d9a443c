//! The graph of waits for the page: where its nodes are drawn, and the same as text.
//!
//! Nodes are in layers from left to right, each to the right of what waits for it. In a cycle, one edge goes back.

use crate::board::charts::unix_ms;
use crate::output::graph_drawing::{Drawing, Shape};
use crate::output::graph_text::{holder_name, process};
use crate::output::printable::printable;
use leasehold::inspect::{WaitGraph, WaitInfo};
use serde::Serialize;

/// More waits are in the list, and not drawn.
const MAX_DRAWN: usize = 60;
/// More waits are counted, and not listed.
const MAX_LISTED: usize = 200;
/// How often the order within the layers is improved.
const SWEEPS: usize = 4;

/// The graph.
#[derive(Debug, Serialize)]
pub(super) struct GraphLayout {
    nodes: Vec<PlacedNode>,
    edges: Vec<Edge>,
    layers: usize,
    rows: usize,
    cycles: Vec<Vec<WaitRow>>,
    waits: Vec<WaitRow>,
    /// Waits that are listed, and not drawn.
    not_drawn: usize,
    /// Waits that are not listed.
    not_listed: u64,
}

#[derive(Debug, Serialize)]
struct PlacedNode {
    is_lock: bool,
    label: String,
    /// The lock's name.
    name: Option<String>,
    layer: usize,
    row: usize,
    in_cycle: bool,
}

#[derive(Debug, Serialize)]
struct Edge {
    from: usize,
    to: usize,
    is_wait: bool,
    in_cycle: bool,
}

#[derive(Debug, Serialize)]
struct WaitRow {
    waiter: String,
    name: String,
    shown: String,
    since: u64,
    holders: Vec<String>,
}

impl GraphLayout {
    pub(super) fn new(graph: &WaitGraph) -> Self {
        let drawn = drawn_part(graph);
        let drawing = Drawing::new(&drawn);
        let edges: Vec<_> = drawing
            .edges
            .iter()
            .map(|&(from, to, is_wait, in_cycle)| Edge { from, to, is_wait, in_cycle })
            .collect();
        let pairs: Vec<_> = edges.iter().map(|edge| (edge.from, edge.to)).collect();
        let places = place(drawing.nodes.len(), &pairs);
        let name_of = |label: &str| {
            let mut names = drawn.waits.iter().map(|wait| wait.lock.as_str());
            names.find(|name| printable(name) == label).map(str::to_owned)
        };
        let nodes: Vec<_> = drawing
            .nodes
            .into_iter()
            .zip(&places)
            .enumerate()
            .map(|(number, (node, &(layer, row)))| {
                let is_lock = node.shape == Shape::Lock;
                let of_node = |edge: &&Edge| edge.from == number || edge.to == number;
                PlacedNode {
                    is_lock,
                    name: if is_lock { name_of(&node.label) } else { None },
                    label: node.label,
                    layer,
                    row,
                    in_cycle: edges.iter().filter(of_node).any(|edge| edge.in_cycle),
                }
            })
            .collect();
        Self {
            layers: places.iter().map(|(layer, _)| layer + 1).max().unwrap_or(0),
            rows: places.iter().map(|(_, row)| row + 1).max().unwrap_or(0),
            nodes,
            edges,
            cycles: graph
                .cycles
                .iter()
                .take(MAX_DRAWN)
                .map(|cycle| cycle.waits.iter().map(WaitRow::new).collect())
                .collect(),
            waits: graph.waits.iter().take(MAX_LISTED).map(WaitRow::new).collect(),
            not_drawn: graph.waits.len().saturating_sub(drawn.waits.len()),
            not_listed: graph.omitted.saturating_add(graph.waits.len().saturating_sub(MAX_LISTED) as u64),
        }
    }
}

/// The waits of the cycles and others, as many as are drawn.
fn drawn_part(graph: &WaitGraph) -> WaitGraph {
    let in_cycle = |wait: &&WaitInfo| {
        let mut all = graph.cycles.iter().flat_map(|cycle| &cycle.waits);
        all.any(|other| other.waiter == wait.waiter && other.lock == wait.lock)
    };
    let (first, others): (Vec<_>, Vec<_>) = graph.waits.iter().partition(in_cycle);
    let mut drawn = WaitGraph::default();
    drawn.waits = first.into_iter().chain(others).take(MAX_DRAWN).cloned().collect();
    drawn.cycles.clone_from(&graph.cycles);
    drawn
}

/// The layer and the row of each node.
fn place(nodes: usize, edges: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let layers = layers(nodes, &forward(nodes, edges));
    let mut by_layer: Vec<Vec<usize>> = Vec::new();
    for (node, &layer) in layers.iter().enumerate() {
        by_layer.resize_with(by_layer.len().max(layer + 1), Vec::new);
        by_layer[layer].push(node);
    }
    let mut rows = vec![0_usize; nodes];
    number(&by_layer, &mut rows);
    for sweep in 0..SWEEPS {
        for layer in &mut by_layer {
            let mean = |node: usize| {
                let neighbours = edges.iter().filter_map(|&(from, to)| match sweep % 2 {
                    0 if to == node => Some(from),
                    1 if from == node => Some(to),
                    _ => None,
                });
                let (sum, count) =
                    neighbours.fold((0, 0), |(sum, count), other| (sum + rows[other], count + 1));
                // In thousandths; without neighbours it stays.
                usize::checked_div(sum * 1_000, count).unwrap_or(rows[node] * 1_000)
            };
            layer.sort_by_cached_key(|&node| mean(node));
        }
        number(&by_layer, &mut rows);
    }
    layers.into_iter().zip(rows).collect()
}

fn number(by_layer: &[Vec<usize>], rows: &mut [usize]) {
    for layer in by_layer {
        for (row, &node) in layer.iter().enumerate() {
            rows[node] = row;
        }
    }
}

/// The edges without those that close a cycle, by a depth-first search. It needs no more stack for a longer chain.
fn forward(nodes: usize, edges: &[(usize, usize)]) -> Vec<(usize, usize)> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let (mut state, mut forward) = (vec![State::New; nodes], Vec::new());
    let of =
        |node: usize| edges.iter().filter(move |edge| edge.0 == node).map(|edge| edge.1).collect::<Vec<_>>();
    let is_first = |node: &usize| !edges.iter().any(|edge| edge.1 == *node);
    // What nothing waits for is on the left.
    let (first, others): (Vec<_>, Vec<_>) = (0..nodes).partition(is_first);
    for start in first.into_iter().chain(others) {
        if state[start] != State::New {
            continue;
        }
        state[start] = State::Open;
        let mut path = vec![(start, of(start))];
        while let Some((node, targets)) = path.last_mut() {
            let node = *node;
            match targets.pop() {
                None => {
                    state[node] = State::Done;
                    path.pop();
                }
                Some(target) if state[target] == State::Open => {}
                Some(target) => {
                    forward.push((node, target));
                    if state[target] == State::New {
                        state[target] = State::Open;
                        path.push((target, of(target)));
                    }
                }
            }
        }
    }
    forward
}

/// The length of the longest path to each node, over edges without a cycle.
fn layers(nodes: usize, forward: &[(usize, usize)]) -> Vec<usize> {
    let mut layers = vec![0; nodes];
    for _ in 0..nodes {
        let mut changed = false;
        for &(from, to) in forward {
            if layers[to] <= layers[from] {
                layers[to] = layers[from] + 1;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    layers
}

impl WaitRow {
    fn new(wait: &WaitInfo) -> Self {
        Self {
            waiter: process(wait.process.as_deref()),
            name: wait.lock.as_str().to_owned(),
            shown: printable(wait.lock.as_str()),
            since: unix_ms(wait.since),
            holders: wait.holders.iter().take(20).map(holder_name).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_to_the_right_of_what_waits_for_it() {
        // 0 waits for 1, which 2 holds, which waits for 3, which 4 holds; 5 waits for 3.
        let places = place(6, &[(0, 1), (1, 2), (2, 3), (3, 4), (5, 3)]);
        let layers: Vec<_> = places.iter().map(|place| place.0).collect();
        assert_eq!(layers, [0, 1, 2, 3, 4, 0]);
        let mut distinct = places.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), places.len(), "{places:?}");
    }

    #[test]
    fn a_cycle_is_laid_out_with_one_edge_back() {
        let edges = [(0, 1), (1, 2), (2, 3), (3, 0)];
        let places = place(4, &edges);
        let back = edges.iter().filter(|(from, to)| places[*from].0 >= places[*to].0);
        assert_eq!(back.count(), 1, "{places:?}");
        assert_eq!(place(1, &[(0, 0)]), [(0, 0)], "it waits for itself");
        assert_eq!(place(0, &[]), []);
    }
}
