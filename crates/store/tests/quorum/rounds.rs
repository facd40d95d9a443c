//! The two rounds of an acquire over three nodes, with undo, extends, repairs and restarts, in all orders.
//!
//! A model of `store/quorum` that is small enough to search. Messages and replies arrive in any order, late or never. A
//! client may die between the rounds. A node may restart empty. The properties: no two clients believe that they hold
//! the lock at the same time, and tokens grow from one holder to the next. The search must find each mutant.
//!
//! A client whose hold a majority has extended puts it on the third node. Then one node may forget everything and vote
//! at once, as after a FLUSHALL, with a clock that is behind, and both properties still hold.
//!
//! Time is modelled as leases: a node keeps a hold at least until the lease is over by the clock of its client, because
//! the client counts from before the request. So each hold has a number of leases, one from the acquire and one from
//! each extend. A client stops believing in its hold once as many leases are over as a majority has acknowledged, and
//! only then may a node end the hold by itself.

use stateright::{Checker, HasDiscoveries, Model, Property, UniformChooser};
use std::collections::BTreeSet;

const NODES: usize = 3;
const NEEDED: usize = 2;
/// The client of each attempt. The second attempt of the first client starts when its first has ended.
const CLIENTS: [usize; 3] = [0, 1, 0];
/// How many leases a hold can get.
const LEASES: u8 = 2;

/// A mistake in the protocol, which the search must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// A restarted node votes at once.
    VotesAtOnce,
    /// The hold counts after the first round.
    NoSecondRound,
    /// The token is that of the first node that votes.
    TokenOfOne,
    /// The second attempt of a client requests the same hold as the first, which is being undone.
    SameHold,
    /// An extend counts as soon as any node has acknowledged it.
    ExtendByOne,
    /// The lease is counted from the last reply.
    CountsFromTheReply,
    /// A node forgets a hold that only a majority has.
    ForgetsAtBareMajority,
    /// A node that gets the hold by a repair does not store its token.
    RepairWithoutToken,
}

/// A message in flight to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Acquire,
    RaiseFence(u8),
    Extend,
    /// Acquire, store this token, and extend.
    Repair(u8),
    Release,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Node {
    /// The current hold, and the number of its leases.
    held: Option<(usize, u8)>,
    /// Whether it got the hold by a repair.
    repaired: bool,
    /// The greatest token that was granted or written.
    last: u8,
    /// The hold before a restart, until it is over.
    forgot: Option<(usize, u8)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
enum Stage {
    #[default]
    Idle,
    Voting,
    Raising,
    /// Held, for that many leases.
    Held(u8),
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Attempt {
    stage: Stage,
    /// The votes with their tokens; the greatest is the token of the hold.
    votes: [Option<u8>; NODES],
    first: u8,
    raised: [bool; NODES],
    extended: [bool; NODES],
    /// The token of the hold.
    token: u8,
    /// How many leases are over.
    over: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; NODES],
    attempts: [Attempt; CLIENTS.len()],
    mail: BTreeSet<(usize, usize, Message)>,
    restarts: u8,
    /// How many nodes may still forget everything without a restart.
    flushes: u8,
    /// The token of the last holder.
    last: u8,
    went_back: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Event {
    Begin(usize),
    /// A message arrives, and its reply does, or does not.
    Arrive(usize, usize, Message, bool),
    Extend(usize),
    /// A hold that was extended is put on the other nodes.
    Repair(usize),
    /// The attempt releases its hold, or gives up.
    Release(usize),
    /// The client dies.
    Die(usize),
    /// A lease of the attempt is over by the clock of its client.
    LeaseEnds(usize),
    /// A node ends a hold by itself.
    Expire(usize),
    /// A node restarts without its data.
    Restart(usize),
    /// A restarted node may vote again.
    MayVote(usize),
    /// A node forgets everything, and votes.
    Flush(usize),
}

struct Rounds {
    mutant: Option<Mutant>,
    restarts: u8,
    flushes: u8,
    /// The number of attempts, and of leases for a hold.
    attempts: usize,
    leases: u8,
    /// Set if replies are lost as well, not only requests.
    lossy: bool,
}

impl Rounds {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// The id of an attempt's hold at the nodes.
    fn hold(&self, attempt: usize) -> usize {
        if self.is(Mutant::SameHold) { CLIENTS[attempt] } else { attempt }
    }

    /// Whether that many leases of a hold are over, for all attempts that requested it.
    fn is_over(&self, state: &State, (hold, leases): (usize, u8)) -> bool {
        if self.is(Mutant::CountsFromTheReply) {
            return true;
        }
        let of_it = (0..CLIENTS.len()).filter(|attempt| self.hold(*attempt) == hold);
        let asked = |attempt: &usize| state.attempts[*attempt].stage != Stage::Idle;
        of_it.filter(asked).all(|attempt| state.attempts[attempt].over >= leases)
    }

    fn believes(attempt: &Attempt) -> bool {
        matches!(attempt.stage, Stage::Held(leases) if leases > attempt.over)
    }

    fn send(state: &mut State, attempt: usize, message: Message) {
        for node in 0..NODES {
            state.mail.insert((node, attempt, message));
        }
    }

    fn granted(state: &mut State, attempt: usize, token: u8) {
        state.went_back |= token <= state.last;
        state.last = state.last.max(token);
        state.attempts[attempt].stage = Stage::Held(1);
        state.attempts[attempt].token = token;
    }

    /// Whether a node may forget everything: all nodes have the same hold and store its token.
    fn may_forget(&self, state: &State, hold: usize) -> bool {
        let token = state.attempts[hold].token;
        let is_stored =
            |node: &Node| node.last >= token || (node.repaired && self.is(Mutant::RepairWithoutToken));
        let copies = state.nodes.iter().filter(|node| node.held.is_some_and(|held| held.0 == hold));
        let needed = if self.is(Mutant::ForgetsAtBareMajority) { NEEDED } else { NODES };
        state.flushes > 0 && token > 0 && copies.filter(|node| is_stored(node)).count() >= needed
    }

    /// A node handles a message. Returns whether it has done what was requested.
    fn deliver(&self, state: &mut State, node: usize, attempt: usize, message: Message) -> bool {
        let hold = self.hold(attempt);
        let at = &mut state.nodes[node];
        match message {
            Message::Acquire if at.held.is_none() && at.forgot.is_none() => {
                // The node's clock is behind its last token, or ahead of those of the nodes before it.
                at.last = (at.last + 1).max(u8::try_from(node).unwrap_or(0));
                at.held = Some((hold, 1));
                at.repaired = false;
                true
            }
            Message::Acquire => at.held.is_some_and(|(held, _)| held == hold) && at.forgot.is_none(),
            Message::RaiseFence(token) => {
                let held = at.held.is_some_and(|(held, _)| held == hold);
                if held {
                    at.last = at.last.max(token);
                }
                held
            }
            Message::Extend => match &mut at.held {
                Some((held, leases)) if *held == hold => {
                    *leases = LEASES;
                    true
                }
                _ => false,
            },
            Message::Repair(token) => {
                let is_own = at.held.is_some_and(|(held, _)| held == hold);
                let may_vote = at.held.is_none() && at.forgot.is_none();
                if may_vote {
                    at.last = (at.last + 1).max(u8::try_from(node).unwrap_or(0));
                    (at.held, at.repaired) = (Some((hold, LEASES)), true);
                    if !self.is(Mutant::RepairWithoutToken) {
                        at.last = at.last.max(token);
                    }
                }
                is_own || may_vote
            }
            Message::Release => {
                at.held.take_if(|(held, _)| *held == hold);
                true
            }
        }
    }

    fn handle_reply(&self, state: &mut State, node: usize, attempt: usize, message: Message) {
        let token = state.nodes[node].last;
        let of = &mut state.attempts[attempt];
        if of.over > 0 && matches!(of.stage, Stage::Voting | Stage::Raising) {
            return;
        }
        match (message, of.stage) {
            (Message::Acquire, Stage::Voting) => {
                if of.votes.iter().all(Option::is_none) {
                    of.first = token;
                }
                of.votes[node] = Some(token);
                if of.votes.iter().flatten().count() < NEEDED {
                    return;
                }
                let greatest = of.votes.iter().flatten().copied().max().unwrap_or(0);
                let first = of.first;
                match self.mutant {
                    Some(Mutant::NoSecondRound) => Self::granted(state, attempt, greatest),
                    Some(Mutant::TokenOfOne) => Self::granted(state, attempt, first),
                    _ => {
                        of.stage = Stage::Raising;
                        Self::send(state, attempt, Message::RaiseFence(greatest));
                    }
                }
            }
            (Message::RaiseFence(token), Stage::Raising) => {
                of.raised[node] = true;
                if of.raised.iter().filter(|raised| **raised).count() >= NEEDED {
                    Self::granted(state, attempt, token);
                }
            }
            (Message::Extend, Stage::Held(_)) if Self::believes(of) => {
                of.extended[node] = true;
                let needed = if self.is(Mutant::ExtendByOne) { 1 } else { NEEDED };
                if of.extended.iter().filter(|extended| **extended).count() >= needed {
                    of.stage = Stage::Held(LEASES);
                }
            }
            _ => {}
        }
    }
}

impl Model for Rounds {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let (nodes, attempts, mail): ([Node; NODES], [Attempt; CLIENTS.len()], _) = Default::default();
        let (restarts, flushes) = (self.restarts, self.flushes);
        let mut state = State { nodes, attempts, mail, restarts, flushes, last: 0, went_back: false };
        if self.is(Mutant::SameHold) {
            // The first attempt has failed, and its undo is in flight.
            state.attempts[0].stage = Stage::Ended;
            Self::send(&mut state, 0, Message::Release);
        }
        let is_extended = self.is(Mutant::RepairWithoutToken);
        if is_extended || self.is(Mutant::ExtendByOne) {
            // Two of three nodes have granted it, or extended it as well. The clock of the third is behind.
            let (leases, token) = if is_extended { (LEASES, 5) } else { (1, 1) };
            let extended = [is_extended, is_extended, false];
            let stage = Stage::Held(leases);
            state.attempts[0] = Attempt { stage, extended, token, ..Attempt::default() };
            for node in &mut state.nodes[..NEEDED] {
                *node = Node { held: Some((0, leases)), last: token, ..Node::default() };
            }
            state.last = token;
        }
        vec![state]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        for (attempt, of) in state.attempts.iter().enumerate().take(self.attempts) {
            let earlier = (0..attempt).filter(|other| CLIENTS[*other] == CLIENTS[attempt]);
            let free = earlier.clone().all(|other| state.attempts[other].stage == Stage::Ended);
            match of.stage {
                Stage::Idle if free => events.push(Event::Begin(attempt)),
                Stage::Voting => events.push(Event::Release(attempt)),
                Stage::Raising => events.extend([Event::Release(attempt), Event::Die(attempt)]),
                Stage::Held(leases) => {
                    events.push(Event::Release(attempt));
                    if leases < self.leases
                        && Self::believes(of)
                        && !state.mail.contains(&(0, attempt, Message::Extend))
                    {
                        events.push(Event::Extend(attempt));
                    }
                    let repair = |node| (node, attempt, Message::Repair(of.token));
                    let lacking = (0..NODES).filter(|node| !of.extended[*node]);
                    if leases == LEASES
                        && Self::believes(of)
                        && lacking.clone().any(|node| !state.mail.contains(&repair(node)))
                    {
                        events.push(Event::Repair(attempt));
                    }
                }
                Stage::Idle | Stage::Ended => {}
            }
            if of.stage != Stage::Idle && of.over < self.leases {
                events.push(Event::LeaseEnds(attempt));
            }
        }
        for (node, attempt, message) in &state.mail {
            for answered in [true, false].into_iter().filter(|answered| *answered || self.lossy) {
                events.push(Event::Arrive(*node, *attempt, *message, answered));
            }
        }
        for (node, at) in state.nodes.iter().enumerate() {
            if at.held.is_some_and(|held| self.is_over(state, held)) {
                events.push(Event::Expire(node));
            }
            if state.restarts > 0 && at.held.is_some() {
                events.push(Event::Restart(node));
            }
            if at.forgot.is_some_and(|forgot| self.is_over(state, forgot)) {
                events.push(Event::MayVote(node));
            }
            if at.held.is_some_and(|(hold, _)| self.may_forget(state, hold)) {
                events.push(Event::Flush(node));
            }
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut state = state.clone();
        match event {
            Event::Begin(attempt) => {
                state.attempts[attempt].stage = Stage::Voting;
                Self::send(&mut state, attempt, Message::Acquire);
            }
            Event::Arrive(node, attempt, message, answered) => {
                state.mail.remove(&(node, attempt, message));
                if self.deliver(&mut state, node, attempt, message) && answered {
                    self.handle_reply(&mut state, node, attempt, message);
                }
            }
            Event::Extend(attempt) => Self::send(&mut state, attempt, Message::Extend),
            Event::Repair(attempt) => {
                let Attempt { extended, token, .. } = state.attempts[attempt];
                let lacking = (0..NODES).filter(|node| !extended[*node]);
                state.mail.extend(lacking.map(|node| (node, attempt, Message::Repair(token))));
            }
            Event::Flush(node) => {
                state.flushes -= 1;
                state.nodes[node] = Node::default();
            }
            Event::Release(attempt) => {
                state.attempts[attempt].stage = Stage::Ended;
                Self::send(&mut state, attempt, Message::Release);
            }
            Event::Die(attempt) => state.attempts[attempt].stage = Stage::Ended,
            Event::LeaseEnds(attempt) => {
                state.attempts[attempt].over += 1;
            }
            Event::Expire(node) => state.nodes[node].held = None,
            Event::Restart(node) => {
                state.restarts -= 1;
                let forgot = state.nodes[node].held.filter(|_| !self.is(Mutant::VotesAtOnce));
                // By the time that it votes, the node's clock is past all tokens.
                let last = state.nodes[node].last + u8::from(forgot.is_some());
                state.nodes[node] = Node { last, forgot, ..Node::default() };
            }
            Event::MayVote(node) => {
                let beyond = state.nodes.iter().map(|node| node.last).max().unwrap_or(0);
                state.nodes[node].forgot = None;
                state.nodes[node].last = beyond.max(state.last);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("exclusion", |_, state: &State| {
                state.attempts.iter().filter(|attempt| Self::believes(attempt)).count() <= 1
            }),
            Property::always("tokens grow", |_, state: &State| !state.went_back),
            Property::sometimes("it is held", |_, state: &State| state.attempts.iter().any(Self::believes)),
            Property::sometimes("it is held after another", |_, state: &State| {
                Self::believes(&state.attempts[1])
                    && state.attempts[0].votes.iter().flatten().count() >= NEEDED
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.nodes.iter().all(|node| node.last < 12)
    }
}

/// How many states a random search visits.
fn states(least: usize) -> usize {
    std::env::var("LEASEHOLD_STATES").ok().and_then(|states| states.parse().ok()).unwrap_or(least)
}

/// The names of the properties that have examples.
fn found(checked: &impl Checker<Rounds>) -> Vec<&'static str> {
    let mut found: Vec<_> = checked.discoveries().into_keys().collect();
    found.sort_unstable();
    println!("{} states: {found:?}", checked.state_count());
    found
}

/// Two attempts with one lease each, in all orders up to the limit; and more attempts, in random orders.
#[test]
fn there_is_one_holder_and_tokens_grow_in_whatever_order() {
    let few = Rounds { mutant: None, restarts: 0, flushes: 0, attempts: 2, leases: 1, lossy: true };
    let checked = few.checker().threads(2).target_state_count(states(2_000_000)).spawn_bfs().join();
    assert!(found(&checked).iter().all(|found| found.starts_with("it is held")));
    for (restarts, flushes) in [(2, 0), (0, 1)] {
        let (attempts, leases) = (CLIENTS.len(), LEASES);
        let many = Rounds { mutant: None, restarts, flushes, attempts, leases, lossy: true };
        let checked = many.checker().threads(2).target_state_count(states(2_000_000));
        let checked = checked.spawn_simulation(7, UniformChooser).join();
        assert_eq!(found(&checked), ["it is held", "it is held after another"]);
    }
}

#[test]
fn each_mutant_of_the_rounds_is_found() {
    for (mutant, broken) in [
        (Mutant::VotesAtOnce, "exclusion"),
        (Mutant::NoSecondRound, "tokens grow"),
        (Mutant::TokenOfOne, "tokens grow"),
        (Mutant::SameHold, "exclusion"),
        (Mutant::ExtendByOne, "exclusion"),
        (Mutant::CountsFromTheReply, "exclusion"),
        (Mutant::ForgetsAtBareMajority, "exclusion"),
        (Mutant::RepairWithoutToken, "tokens grow"),
    ] {
        // No more of each than necessary.
        let attempts = if mutant == Mutant::SameHold { CLIENTS.len() } else { 2 };
        let restarts = u8::from(mutant == Mutant::VotesAtOnce);
        let flushes = u8::from(matches!(mutant, Mutant::ForgetsAtBareMajority | Mutant::RepairWithoutToken));
        let leases =
            if matches!(mutant, Mutant::ExtendByOne | Mutant::RepairWithoutToken) { LEASES } else { 1 };
        let rounds = Rounds { mutant: Some(mutant), restarts, flushes, attempts, leases, lossy: false };
        let checked = rounds.checker().threads(2).target_state_count(20_000_000);
        let checked = checked.finish_when(HasDiscoveries::AnyOf([broken].into()));
        let checked = checked.spawn_simulation(7, UniformChooser).join();
        println!("{mutant:?}: {} states", checked.state_count());
        assert!(checked.discovery(broken).is_some(), "{mutant:?} is not found");
    }
}
