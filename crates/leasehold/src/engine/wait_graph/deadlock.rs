//! Which waits never end, unless something gives up.
//!
//! It knows waits and what holds the locks, and neither stores nor clients.
//!
//! 1. An actor is stuck if each of its waits is blocked by stuck actors. The largest set of actors of which that is true is
//!    what is left when those of which it is not true are removed, again and again.
//! 2. Whether a wait is blocked depends on the kind of the lock. Of a lock with one holder, that holder must be stuck. A writer
//!    needs all readers to leave, so one stuck reader suffices. A semaphore must not have enough permits without those of
//!    stuck holders. Where nothing is known of a holder, it is not stuck.
//! 3. A cycle is a cycle of stuck actors: one in each strongly connected component, found with Tarjan's algorithm (R. Tarjan,
//!    "Depth-first search and linear graph algorithms", 1972).

use leasehold_core::{Holder, Inspection, LockMode, MAX_SHARED_HOLDERS};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A wait: what waits, and what it waits for.
pub(super) struct Edge<'a> {
    waiter: &'a str,
    condition: Condition,
    /// For each holder that matters, its permits, and the actors that would have to go on for it to release the lock: it is stuck
    /// if one of them is.
    holders: Vec<(u32, Vec<&'a str>)>,
}

/// When a wait is blocked (2).
enum Condition {
    /// If one of the holders is stuck.
    Any,
    /// If all holders are stuck.
    All,
    /// If fewer than `count` of `limit` permits are left without those of stuck holders.
    Permits { count: u32, limit: u32 },
    /// Nothing is known.
    Never,
}

impl<'a> Edge<'a> {
    /// A wait for something of which nothing is known.
    pub(super) const fn unknown(waiter: &'a str) -> Self {
        Self { waiter, condition: Condition::Never, holders: Vec::new() }
    }

    /// A wait for a lock. `blockers` names the actors that have to go on before a holder releases it.
    pub(super) fn new(
        waiter: &'a str,
        mode: LockMode,
        inspection: &Inspection,
        blockers: impl Fn(&Holder) -> Vec<&'a str>,
    ) -> Self {
        let shared = &inspection.shared_holders;
        if shared.len() >= MAX_SHARED_HOLDERS {
            return Self::unknown(waiter);
        }
        let all = || shared.iter().chain(inspection.holder.as_ref().filter(|_| shared.is_empty()));
        // A released lock whose cooldown lasts becomes free by itself.
        let holds = |holder: &&Holder| !holder.in_cooldown;
        let writes = |holder: &&Holder| matches!(holder.mode, LockMode::Write | LockMode::Upgrade);
        let upgrades = |holder: &&Holder| writes(holder) || holder.mode == LockMode::Upgradable;
        let (condition, relevant): (_, Vec<_>) = match mode {
            LockMode::Permits { count, total } => {
                let limit = inspection.limit.unwrap_or(total);
                (Condition::Permits { count, limit }, all().filter(holds).collect())
            }
            LockMode::Read if all().any(|holder| writes(&holder)) => {
                (Condition::Any, all().filter(writes).collect())
            }
            LockMode::Upgradable if all().any(|holder| upgrades(&holder)) => {
                (Condition::Any, all().filter(upgrades).collect())
            }
            // They wait behind others in the queue.
            LockMode::Read | LockMode::Upgradable => (Condition::All, all().collect()),
            LockMode::Exclusive | LockMode::Write | LockMode::Upgrade => {
                (Condition::Any, all().filter(holds).collect())
            }
            _ => (Condition::Never, Vec::new()),
        };
        let permits = |holder: &Holder| match holder.mode {
            LockMode::Permits { count, .. } => count,
            _ => 1,
        };
        let holders = relevant.into_iter().map(|holder| (permits(holder), blockers(holder))).collect();
        Self { waiter, condition, holders }
    }

    /// Whether it is blocked, if these actors are stuck.
    fn is_blocked(&self, stuck: &BTreeSet<&str>) -> bool {
        let is_stuck = |actors: &[&str]| actors.iter().any(|actor| stuck.contains(actor));
        let mut holders = self.holders.iter();
        match self.condition {
            Condition::Any => holders.any(|(_, actors)| is_stuck(actors)),
            Condition::All => !self.holders.is_empty() && holders.all(|(_, actors)| is_stuck(actors)),
            Condition::Permits { count, limit } => {
                let taken =
                    holders.filter(|(_, actors)| is_stuck(actors)).map(|(permits, _)| u64::from(*permits));
                // Without a stuck holder, the permits do not suffice for another reason, which may change.
                let taken: u64 = taken.sum();
                taken > 0 && u64::from(limit) < u64::from(count) + taken
            }
            Condition::Never => false,
        }
    }
}

/// The cycles: each is a sequence of indices of waits, of which each waits for a lock that has to do with the actor of the next.
pub(super) fn find_cycles(waits: &[Edge<'_>]) -> Vec<Vec<usize>> {
    let stuck = stuck(waits);
    let mut next: BTreeMap<&str, Vec<(usize, &str)>> = BTreeMap::new();
    for (at, wait) in waits.iter().enumerate().filter(|(_, wait)| stuck.contains(wait.waiter)) {
        let actors =
            wait.holders.iter().flat_map(|(_, actors)| actors).filter(|actor| stuck.contains(*actor));
        next.entry(wait.waiter).or_default().extend(actors.map(|actor| (at, *actor)));
    }
    components(&next).iter().filter_map(|component| shortest_cycle(&next, component)).collect()
}

/// The actors that are stuck (1).
fn stuck<'a>(waits: &[Edge<'a>]) -> BTreeSet<&'a str> {
    let mut stuck: BTreeSet<_> = waits.iter().map(|wait| wait.waiter).collect();
    loop {
        let free: BTreeSet<_> =
            waits.iter().filter(|wait| !wait.is_blocked(&stuck)).map(|wait| wait.waiter).collect();
        let before = stuck.len();
        stuck.retain(|actor| !free.contains(actor));
        if stuck.len() == before {
            return stuck;
        }
    }
}

/// What is known of an actor that was visited (3).
#[derive(Clone, Copy)]
struct Visit {
    /// When it was visited first.
    index: usize,
    /// The earliest actor on the stack that is known to be reached from it.
    low: usize,
    on_stack: bool,
}

/// The strongly connected components (3). Without recursion: their size is up to other clients.
fn components<'a>(next: &BTreeMap<&'a str, Vec<(usize, &'a str)>>) -> Vec<BTreeSet<&'a str>> {
    let mut visits: BTreeMap<&str, Visit> = BTreeMap::new();
    let (mut stack, mut found, none) = (Vec::new(), Vec::new(), Vec::new());
    for root in next.keys() {
        let mut path: Vec<(&str, usize)> = vec![(root, 0)];
        while let Some((actor, edge)) = path.pop() {
            let index = visits.len();
            if edge == 0 {
                if visits.contains_key(actor) {
                    continue;
                }
                visits.insert(actor, Visit { index, low: index, on_stack: true });
                stack.push(actor);
            }
            let edges = next.get(actor).unwrap_or(&none);
            if edge > 0 {
                // Back from the actor of the edge before.
                let low = visits[edges[edge - 1].1].low;
                lower(&mut visits, actor, low);
            }
            let mut descends = false;
            for (at, (_, to)) in edges.iter().enumerate().skip(edge) {
                match visits.get(to) {
                    None => {
                        path.extend([(actor, at + 1), (to, 0)]);
                        descends = true;
                        break;
                    }
                    Some(visit) if visit.on_stack => {
                        let low = visit.index;
                        lower(&mut visits, actor, low);
                    }
                    Some(_) => {}
                }
            }
            let visit = visits[actor];
            if descends || visit.low != visit.index {
                continue;
            }
            let mut component = BTreeSet::new();
            while let Some(member) = stack.pop() {
                if let Some(visit) = visits.get_mut(member) {
                    visit.on_stack = false;
                }
                component.insert(member);
                if member == actor {
                    break;
                }
            }
            found.push(component);
        }
    }
    found
}

fn lower(visits: &mut BTreeMap<&str, Visit>, actor: &str, low: usize) {
    if let Some(visit) = visits.get_mut(actor)
        && visit.low > low
    {
        visit.low = low;
    }
}

/// A shortest cycle through the first actor of a component that has one.
fn shortest_cycle(
    next: &BTreeMap<&str, Vec<(usize, &str)>>,
    component: &BTreeSet<&str>,
) -> Option<Vec<usize>> {
    let start = *component.first()?;
    // How each actor was reached: by which wait, of which actor.
    let mut reached: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(actor) = queue.pop_front() {
        for (wait, to) in next.get(actor).into_iter().flatten().filter(|(_, to)| component.contains(to)) {
            if reached.contains_key(to) {
                continue;
            }
            reached.insert(to, (*wait, actor));
            if *to != start {
                queue.push_back(to);
                continue;
            }
            let mut waits = Vec::new();
            let mut at = start;
            while let Some((wait, from)) = reached.get(at).filter(|_| waits.len() <= component.len()) {
                waits.push(*wait);
                at = from;
                if at == start {
                    break;
                }
            }
            waits.reverse();
            return Some(waits);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait<'a>(waiter: &'a str, condition: Condition, holders: &[(u32, &[&'a str])]) -> Edge<'a> {
        let holders = holders.iter().map(|(permits, actors)| (*permits, actors.to_vec())).collect();
        Edge { waiter, condition, holders }
    }

    /// The cycles, as the actors that wait.
    fn cycles<'a>(waits: &[Edge<'a>]) -> Vec<Vec<&'a str>> {
        let actors = |cycle: Vec<usize>| cycle.into_iter().map(|at| waits[at].waiter).collect();
        find_cycles(waits).into_iter().map(actors).collect()
    }

    fn mutex<'a>(waiter: &'a str, holder: &[&'a str]) -> Edge<'a> {
        wait(waiter, Condition::Any, &[(1, holder)])
    }

    #[test]
    fn a_cycle_is_found_and_what_waits_for_it_is_no_part() {
        let waits =
            [mutex("a", &["b"]), mutex("b", &["c"]), mutex("c", &["a"]), mutex("d", &["a"]), mutex("e", &[])];
        assert_eq!(cycles(&waits), [["a", "b", "c"]]);
    }

    #[test]
    fn a_chain_is_no_cycle() {
        assert!(cycles(&[mutex("a", &["b"]), mutex("b", &["c"])]).is_empty(), "c goes on");
        assert!(cycles(&[mutex("a", &["b"]), mutex("b", &[])]).is_empty());
    }

    #[test]
    fn each_component_has_one_cycle() {
        let waits = [
            mutex("a", &["b"]),
            mutex("b", &["a"]),
            mutex("c", &["d"]),
            mutex("d", &["c"]),
            mutex("e", &["e"]),
            mutex("f", &["a"]),
        ];
        assert_eq!(cycles(&waits), [vec!["a", "b"], vec!["c", "d"], vec!["e"]]);
    }

    #[test]
    fn an_actor_with_another_wait_may_go_on() {
        let waits = [mutex("a", &["b"]), mutex("b", &["a"]), mutex("a", &["c"])];
        assert!(cycles(&waits).is_empty(), "c releases the other lock");
    }

    #[test]
    fn a_permit_that_may_come_back_is_no_cycle() {
        let permits = |waiter, count, holders: &[(u32, &[&'static str])]| {
            wait(waiter, Condition::Permits { count, limit: 3 }, holders)
        };
        let other = || mutex("b", &["a"]);
        assert!(
            cycles(&[permits("a", 1, &[(1, &["b"]), (2, &[])]), other()]).is_empty(),
            "another may release two"
        );
        assert_eq!(cycles(&[permits("a", 2, &[(2, &["b"]), (1, &[])]), other()]), [["a", "b"]]);
        assert_eq!(cycles(&[permits("a", 1, &[(1, &["b"]), (2, &["b"])]), other()]), [["a", "b"]]);
        assert!(cycles(&[permits("a", 1, &[(2, &[])]), other()]).is_empty());
    }

    #[test]
    fn a_writer_waits_for_every_reader_and_a_reader_behind_it_for_all() {
        let writer = wait("a", Condition::Any, &[(1, &["b"]), (1, &[])]);
        assert_eq!(cycles(&[writer, mutex("b", &["a"])]), [["a", "b"]]);
        let reader = wait("a", Condition::All, &[(1, &["b"]), (1, &[])]);
        assert!(cycles(&[reader, mutex("b", &["a"])]).is_empty());
        assert!(cycles(&[wait("a", Condition::All, &[])]).is_empty());
    }

    #[test]
    fn a_long_cycle_needs_no_deep_stack() {
        let names: Vec<_> = (0..20_000).map(|n| format!("{n:05}")).collect();
        let waits: Vec<_> = (0..names.len()).map(|n| mutex(&names[n], &[])).collect();
        let waits: Vec<_> = waits
            .into_iter()
            .enumerate()
            .map(|(n, wait)| Edge { holders: vec![(1, vec![&*names[(n + 1) % names.len()]])], ..wait })
            .collect();
        let found = find_cycles(&waits);
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [20_000]);
    }
}
