//! The two rounds of an acquire over three nodes, with undo, extends and restarts, in all orders.
//!
//! A model of `store/quorum` that is small enough to search. Messages and replies arrive in any order, late or never. A
//! client may die between the rounds. A node may restart empty. The properties: no two clients believe that they hold
//! the lock at the same time, and tokens grow from one holder to the next. The search must find each planted mistake.
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

/// A planted mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
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
    CountsFromTheAnswer,
}

/// A message in flight to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Ask {
    Acquire,
    RaiseFence(u8),
    Extend,
    Release,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Node {
    /// The current hold, and the number of its leases.
    held: Option<(usize, u8)>,
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
    /// How many leases are over.
    over: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Environment {
    nodes: [Node; NODES],
    attempts: [Attempt; CLIENTS.len()],
    mail: BTreeSet<(usize, usize, Ask)>,
    restarts: u8,
    /// The token of the last holder.
    last: u8,
    went_back: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Event {
    Begin(usize),
    /// A message arrives, and its reply does, or does not.
    Arrive(usize, usize, Ask, bool),
    Extend(usize),
    /// The attempt releases its hold, or gives up.
    Release(usize),
    Die(usize),
    ReleaseAction(usize),
    Expire(usize),
    Restart(usize),
    Grown(usize),
}

struct Rounds {
    mistake: Option<Mistake>,
    restarts: u8,
    /// The number of attempts, and of leases for a hold.
    attempts: usize,
    leases: u8,
    /// Set if replies are lost as well, not only requests.
    lossy: bool,
}

impl Rounds {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// The id of an attempt's hold at the nodes.
    fn hold(&self, attempt: usize) -> usize {
        if self.is(Mistake::SameHold) { CLIENTS[attempt] } else { attempt }
    }

    /// Whether that many leases of a hold are over, for all attempts that requested it.
    fn is_over(&self, environment: &Environment, (hold, leases): (usize, u8)) -> bool {
        if self.is(Mistake::CountsFromTheAnswer) {
            return true;
        }
        let of_it = (0..CLIENTS.len()).filter(|attempt| self.hold(*attempt) == hold);
        let asked = |attempt: &usize| environment.attempts[*attempt].stage != Stage::Idle;
        of_it.filter(asked).all(|attempt| environment.attempts[attempt].over >= leases)
    }

    fn believes(attempt: &Attempt) -> bool {
        matches!(attempt.stage, Stage::Held(leases) if leases > attempt.over)
    }

    fn send(environment: &mut Environment, attempt: usize, ask: Ask) {
        for node in 0..NODES {
            environment.mail.insert((node, attempt, ask));
        }
    }

    fn won(environment: &mut Environment, attempt: usize, token: u8) {
        environment.went_back |= token <= environment.last;
        environment.last = environment.last.max(token);
        environment.attempts[attempt].stage = Stage::Held(1);
    }

    /// A node handles a message. Returns whether it has done what was requested.
    fn deliver(&self, environment: &mut Environment, node: usize, attempt: usize, ask: Ask) -> bool {
        let hold = self.hold(attempt);
        let at = &mut environment.nodes[node];
        match ask {
            Ask::Acquire if at.held.is_none() && at.forgot.is_none() => {
                // The node's clock is behind its last token, or ahead of those of the nodes before it.
                at.last = (at.last + 1).max(u8::try_from(node).unwrap_or(0));
                at.held = Some((hold, 1));
                true
            }
            Ask::Acquire => at.held.is_some_and(|(held, _)| held == hold) && at.forgot.is_none(),
            Ask::RaiseFence(token) => {
                let held = at.held.is_some_and(|(held, _)| held == hold);
                if held {
                    at.last = at.last.max(token);
                }
                held
            }
            Ask::Extend => match &mut at.held {
                Some((held, leases)) if *held == hold => {
                    *leases = LEASES;
                    true
                }
                _ => false,
            },
            Ask::Release => {
                at.held.take_if(|(held, _)| *held == hold);
                true
            }
        }
    }

    fn answered(&self, environment: &mut Environment, node: usize, attempt: usize, ask: Ask) {
        let token = environment.nodes[node].last;
        let of = &mut environment.attempts[attempt];
        if of.over > 0 && matches!(of.stage, Stage::Voting | Stage::Raising) {
            return;
        }
        match (ask, of.stage) {
            (Ask::Acquire, Stage::Voting) => {
                if of.votes.iter().all(Option::is_none) {
                    of.first = token;
                }
                of.votes[node] = Some(token);
                if of.votes.iter().flatten().count() < NEEDED {
                    return;
                }
                let greatest = of.votes.iter().flatten().copied().max().unwrap_or(0);
                let first = of.first;
                match self.mistake {
                    Some(Mistake::NoSecondRound) => Self::won(environment, attempt, greatest),
                    Some(Mistake::TokenOfOne) => Self::won(environment, attempt, first),
                    _ => {
                        of.stage = Stage::Raising;
                        Self::send(environment, attempt, Ask::RaiseFence(greatest));
                    }
                }
            }
            (Ask::RaiseFence(token), Stage::Raising) => {
                of.raised[node] = true;
                if of.raised.iter().filter(|raised| **raised).count() >= NEEDED {
                    Self::won(environment, attempt, token);
                }
            }
            (Ask::Extend, Stage::Held(_)) if Self::believes(of) => {
                of.extended[node] = true;
                let needed = if self.is(Mistake::ExtendByOne) { 1 } else { NEEDED };
                if of.extended.iter().filter(|extended| **extended).count() >= needed {
                    of.stage = Stage::Held(LEASES);
                }
            }
            _ => {}
        }
    }
}

impl Model for Rounds {
    type State = Environment;
    type Action = Event;

    fn init_states(&self) -> Vec<Environment> {
        let (nodes, attempts, mail): ([Node; NODES], [Attempt; CLIENTS.len()], _) = Default::default();
        let mut environment =
            Environment { nodes, attempts, mail, restarts: self.restarts, last: 0, went_back: false };
        if self.is(Mistake::SameHold) {
            // The first attempt has failed, and its undo is in flight.
            environment.attempts[0].stage = Stage::Ended;
            Self::send(&mut environment, 0, Ask::Release);
        }
        if self.is(Mistake::ExtendByOne) {
            // Two of three nodes have granted it.
            environment.attempts[0].stage = Stage::Held(1);
            for node in &mut environment.nodes[..NEEDED] {
                *node = Node { held: Some((0, 1)), last: 1, forgot: None };
            }
            environment.last = 1;
        }
        vec![environment]
    }

    fn actions(&self, environment: &Environment, events: &mut Vec<Event>) {
        for (attempt, of) in environment.attempts.iter().enumerate().take(self.attempts) {
            let earlier = (0..attempt).filter(|other| CLIENTS[*other] == CLIENTS[attempt]);
            let free = earlier.clone().all(|other| environment.attempts[other].stage == Stage::Ended);
            match of.stage {
                Stage::Idle if free => events.push(Event::Begin(attempt)),
                Stage::Voting => events.push(Event::Release(attempt)),
                Stage::Raising => events.extend([Event::Release(attempt), Event::Die(attempt)]),
                Stage::Held(leases) => {
                    events.push(Event::Release(attempt));
                    if leases < self.leases
                        && Self::believes(of)
                        && !environment.mail.contains(&(0, attempt, Ask::Extend))
                    {
                        events.push(Event::Extend(attempt));
                    }
                }
                Stage::Idle | Stage::Ended => {}
            }
            if of.stage != Stage::Idle && of.over < self.leases {
                events.push(Event::ReleaseAction(attempt));
            }
        }
        for (node, attempt, ask) in &environment.mail {
            for answered in [true, false].into_iter().filter(|answered| *answered || self.lossy) {
                events.push(Event::Arrive(*node, *attempt, *ask, answered));
            }
        }
        for (node, at) in environment.nodes.iter().enumerate() {
            if at.held.is_some_and(|held| self.is_over(environment, held)) {
                events.push(Event::Expire(node));
            }
            if environment.restarts > 0 && at.held.is_some() {
                events.push(Event::Restart(node));
            }
            if at.forgot.is_some_and(|forgot| self.is_over(environment, forgot)) {
                events.push(Event::Grown(node));
            }
        }
    }

    fn next_state(&self, environment: &Environment, event: Event) -> Option<Environment> {
        let mut environment = environment.clone();
        match event {
            Event::Begin(attempt) => {
                environment.attempts[attempt].stage = Stage::Voting;
                Self::send(&mut environment, attempt, Ask::Acquire);
            }
            Event::Arrive(node, attempt, ask, answered) => {
                environment.mail.remove(&(node, attempt, ask));
                if self.deliver(&mut environment, node, attempt, ask) && answered {
                    self.answered(&mut environment, node, attempt, ask);
                }
            }
            Event::Extend(attempt) => Self::send(&mut environment, attempt, Ask::Extend),
            Event::Release(attempt) => {
                environment.attempts[attempt].stage = Stage::Ended;
                Self::send(&mut environment, attempt, Ask::Release);
            }
            Event::Die(attempt) => environment.attempts[attempt].stage = Stage::Ended,
            Event::ReleaseAction(attempt) => {
                environment.attempts[attempt].over += 1;
            }
            Event::Expire(node) => environment.nodes[node].held = None,
            Event::Restart(node) => {
                environment.restarts -= 1;
                let forgot = environment.nodes[node].held.filter(|_| !self.is(Mistake::VotesAtOnce));
                // By the time that it votes, the node's clock is past all tokens.
                let last = environment.nodes[node].last + u8::from(forgot.is_some());
                environment.nodes[node] = Node { held: None, last, forgot };
            }
            Event::Grown(node) => {
                let beyond = environment.nodes.iter().map(|node| node.last).max().unwrap_or(0);
                environment.nodes[node].forgot = None;
                environment.nodes[node].last = beyond.max(environment.last);
            }
        }
        Some(environment)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("exclusion", |_, environment: &Environment| {
                environment.attempts.iter().filter(|attempt| Self::believes(attempt)).count() <= 1
            }),
            Property::always("tokens grow", |_, environment: &Environment| !environment.went_back),
            Property::sometimes("it is held", |_, environment: &Environment| {
                environment.attempts.iter().any(Self::believes)
            }),
            Property::sometimes("it is held after another", |_, environment: &Environment| {
                Self::believes(&environment.attempts[1])
                    && environment.attempts[0].votes.iter().flatten().count() >= NEEDED
            }),
        ]
    }

    fn within_boundary(&self, environment: &Environment) -> bool {
        environment.nodes.iter().all(|node| node.last < 12)
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
    let few = Rounds { mistake: None, restarts: 0, attempts: 2, leases: 1, lossy: true };
    let checked = few.checker().threads(2).target_state_count(states(2_000_000)).spawn_bfs().join();
    assert!(found(&checked).iter().all(|found| found.starts_with("it is held")));
    let many = Rounds { mistake: None, restarts: 2, attempts: CLIENTS.len(), leases: LEASES, lossy: true };
    let checked = many.checker().threads(2).target_state_count(states(2_000_000));
    let checked = checked.spawn_simulation(7, UniformChooser).join();
    assert_eq!(found(&checked), ["it is held", "it is held after another"]);
}

#[test]
fn each_planted_mistake_of_the_rounds_is_found() {
    for (mistake, broken) in [
        (Mistake::VotesAtOnce, "exclusion"),
        (Mistake::NoSecondRound, "tokens grow"),
        (Mistake::TokenOfOne, "tokens grow"),
        (Mistake::SameHold, "exclusion"),
        (Mistake::ExtendByOne, "exclusion"),
        (Mistake::CountsFromTheAnswer, "exclusion"),
    ] {
        // No more of each than necessary.
        let attempts = if mistake == Mistake::SameHold { CLIENTS.len() } else { 2 };
        let restarts = u8::from(mistake == Mistake::VotesAtOnce);
        let leases = if mistake == Mistake::ExtendByOne { LEASES } else { 1 };
        let rounds = Rounds { mistake: Some(mistake), restarts, attempts, leases, lossy: false };
        let checked = rounds.checker().threads(2).target_state_count(20_000_000);
        let checked = checked.finish_when(HasDiscoveries::AnyOf([broken].into()));
        let checked = checked.spawn_simulation(7, UniformChooser).join();
        println!("{mistake:?}: {} states", checked.state_count());
        assert!(checked.discovery(broken).is_some(), "{mistake:?} is not found");
    }
}
