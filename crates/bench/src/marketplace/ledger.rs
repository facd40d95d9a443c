//! The audit: compares what the traders report with the data on the server.
//!
//! Owns the invariants of the market, which hold under every strategy:
//!
//! 1. Money is conserved, in total and for each user.
//! 2. No user's funds are below zero.
//! 3. Each item is in exactly one place: one inventory, or the market. There are no others.
//! 4. No item is sold twice: it is in at most one purchase, and the buyer owns it.
//! 5. The traders' counts agree with the server: what was listed and not bought is on the market.

use super::deal::{MARKET, Offer, inventory, user};
use super::strategy::DealEnd;
use super::trader::{Account, Event};
use anyhow::{Context, Result, bail};
use redis::Commands;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// How many violations are listed.
const LISTED: usize = 10;
/// How long a command may take: its reply may contain a million items.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// The data on the server.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) funds: BTreeMap<u32, i64>,
    pub(super) inventories: BTreeMap<u32, Vec<u64>>,
    pub(super) market: Vec<Offer>,
}

impl State {
    /// Reads it, after the trade has ended.
    pub(super) fn read(url: &str, users: impl Iterator<Item = u32>) -> Result<Self> {
        let mut connection = redis::Client::open(url)?.get_connection_with_timeout(COMMAND_TIMEOUT)?;
        connection.set_read_timeout(Some(COMMAND_TIMEOUT))?;
        let mut state = Self::default();
        for id in users {
            state.funds.insert(id, connection.hget(user(id), "funds")?);
            state.inventories.insert(id, connection.smembers(inventory(id))?);
        }
        let offers: Vec<(String, i64)> = connection.zrange_withscores(MARKET, 0, -1)?;
        for (member, price) in offers {
            state
                .market
                .push(Offer::parse(&member, price).with_context(|| format!("`{member}` on the market"))?);
        }
        Ok(state)
    }
}

/// Fails unless the invariants hold. Each user had `seeded` at first.
pub(super) fn audit(seeded: i64, accounts: &[Account], state: &State) -> Result<()> {
    let mut violations = money(seeded, accounts, state);
    violations.extend(items(accounts, state));
    violations.extend(sales(accounts, state));
    if violations.is_empty() {
        return Ok(());
    }
    let more = violations.len().saturating_sub(LISTED);
    violations.truncate(LISTED);
    if more > 0 {
        violations.push(format!("and {more} more"));
    }
    bail!("the invariants of the market do not hold: {}", violations.join("; "))
}

fn done(account: &Account) -> impl Iterator<Item = &Event> {
    account.events.iter().filter(|event| event.end == DealEnd::Done)
}

fn purchases(accounts: &[Account]) -> impl Iterator<Item = (u32, &Offer)> {
    let buyers = accounts.iter().filter(|account| account.buys);
    buyers.flat_map(|account| done(account).map(|event| (account.user, &event.offer)))
}

fn listings(accounts: &[Account]) -> impl Iterator<Item = &Offer> {
    accounts
        .iter()
        .filter(|account| !account.buys)
        .flat_map(|account| done(account).map(|event| &event.offer))
}

/// Checks 1 and 2.
fn money(seeded: i64, accounts: &[Account], state: &State) -> Vec<String> {
    let mut found = Vec::new();
    let mut due: BTreeMap<u32, i64> = accounts.iter().map(|account| (account.user, seeded)).collect();
    for (buyer, offer) in purchases(accounts) {
        *due.entry(buyer).or_default() -= offer.price;
        *due.entry(offer.seller).or_default() += offer.price;
    }
    let (before, after): (i64, i64) = (due.values().sum(), state.funds.values().sum());
    if before != after {
        found.push(format!("money is not conserved: it was {before} in total, and is {after}"));
    }
    for (id, due) in &due {
        let has = state.funds.get(id).copied().unwrap_or(0);
        if has != *due {
            found.push(format!("user {id} has {has}, and should have {due} after its deals"));
        }
    }
    let negative = state.funds.iter().filter(|(_, funds)| **funds < 0);
    found.extend(negative.map(|(id, funds)| format!("the funds of user {id} are below zero: {funds}")));
    found
}

/// Checks 3.
fn items(accounts: &[Account], state: &State) -> Vec<String> {
    let mut found = Vec::new();
    let mut places: HashMap<u64, u32> = HashMap::new();
    let owned = state.inventories.values().flatten().copied();
    for item in owned.chain(state.market.iter().map(|offer| offer.item)) {
        *places.entry(item).or_default() += 1;
    }
    for (item, count) in places.iter().filter(|(_, count)| **count > 1) {
        found.push(format!("item {item} is in {count} places"));
    }
    let made = |item: u64| accounts.iter().any(|account| (account.made.0..account.made.1).contains(&item));
    let unknown = places.keys().filter(|item| !made(**item));
    found.extend(unknown.map(|item| format!("item {item} was never made")));
    let all = accounts.iter().flat_map(|account| account.made.0..account.made.1);
    found.extend(all.filter(|item| !places.contains_key(item)).map(|item| format!("item {item} is nowhere")));
    // A map has no order, and a message needs one.
    found.sort_unstable();
    found
}

/// Checks 4 and 5.
fn sales(accounts: &[Account], state: &State) -> Vec<String> {
    let mut found = Vec::new();
    let mut sold: HashMap<u64, u32> = HashMap::new();
    for (buyer, offer) in purchases(accounts) {
        if let Some(before) = sold.insert(offer.item, buyer) {
            found.push(format!("item {} was sold twice: to {before} and to {buyer}", offer.item));
        }
    }
    let listed: HashMap<u64, Offer> = listings(accounts).map(|offer| (offer.item, *offer)).collect();
    for (_, offer) in purchases(accounts).filter(|(_, offer)| listed.get(&offer.item) != Some(*offer)) {
        found.push(format!("item {} was sold at an offer that no user has listed", offer.item));
    }
    for account in accounts {
        let has = state.inventories.get(&account.user).map_or(0, Vec::len) as u64;
        let moved = done(account).count() as u64;
        let due = if account.buys { moved } else { account.made.1 - account.made.0 - moved };
        if has != due {
            found.push(format!("user {} has {has} items, and counts {due}", account.user));
        }
    }
    let bought = state.inventories.iter().flat_map(|(id, items)| items.iter().map(move |item| (*id, *item)));
    let buyers = |id: u32| accounts.iter().any(|account| account.buys && account.user == id);
    for (id, item) in bought.filter(|(id, item)| buyers(*id) && sold.get(item) != Some(id)) {
        found.push(format!("user {id} has item {item}, and has not bought it"));
    }
    let (listed, sold) = (listed.len() as u64, sold.len() as u64);
    if state.market.len() as u64 + sold != listed {
        found.push(format!(
            "{listed} items were listed and {sold} bought, and {} are on the market",
            state.market.len()
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDED: i64 = 500;

    fn offer(item: u64, price: i64) -> Offer {
        Offer { item, seller: 1, price }
    }

    fn account(user: u32, made: (u64, u64), offers: &[Offer]) -> Account {
        let event = |offer: &Offer| Event {
            end: DealEnd::Done,
            offer: *offer,
            retries: 0,
            decided_ns: 0,
            ended_ns: 1,
        };
        let events = offers.iter().map(event).collect();
        Account { user, buys: user != 1, made, events, measured_ns: (0, 2) }
    }

    /// A seller with five items, four of them listed; two buyers of one each, at 30 and 40.
    fn valid() -> (Vec<Account>, State) {
        let offers = [offer(10, 30), offer(11, 40), offer(12, 50), offer(13, 60)];
        let accounts = vec![
            account(1, (10, 15), &offers),
            account(2, (0, 0), &offers[..1]),
            account(3, (0, 0), &offers[1..2]),
        ];
        let state = State {
            funds: [(1, SEEDED + 70), (2, SEEDED - 30), (3, SEEDED - 40)].into(),
            inventories: [(1, vec![14]), (2, vec![10]), (3, vec![11])].into(),
            market: offers[2..].to_vec(),
        };
        (accounts, state)
    }

    /// Corrupts valid data, and expects a violation.
    #[track_caller]
    fn check(expected: &str, corrupt: impl FnOnce(&mut Vec<Account>, &mut State)) {
        let (mut accounts, mut state) = valid();
        audit(SEEDED, &accounts, &state).expect("the data are valid before");
        corrupt(&mut accounts, &mut state);
        let error = audit(SEEDED, &accounts, &state).expect_err("a violation").to_string();
        assert!(error.contains(expected), "{error}");
    }

    fn funds(state: &mut State, id: u32) -> &mut i64 {
        state.funds.get_mut(&id).expect("a known user")
    }

    fn has(state: &mut State, id: u32) -> &mut Vec<u64> {
        state.inventories.get_mut(&id).expect("a known user")
    }

    #[test]
    fn lost_money_is_found() {
        check("money is not conserved: it was 1500 in total, and is 1490", |_, state| *funds(state, 2) -= 10);
        check("user 2 has 460", |_, state| {
            *funds(state, 2) -= 10;
            *funds(state, 3) += 10;
        });
    }

    #[test]
    fn funds_below_zero_are_found_though_the_sums_agree() {
        check("the funds of user 2 are below zero: -5", |accounts, state| {
            let (expensive, item) = (offer(15, 475), 15);
            accounts[0].made.1 = 16;
            let event = Event { offer: expensive, ..accounts[0].events[0] };
            accounts[0].events.push(event);
            accounts[1].events.push(event);
            has(state, 2).push(item);
            *funds(state, 2) -= expensive.price;
            *funds(state, 1) += expensive.price;
        });
    }

    #[test]
    fn an_item_in_two_places_is_found() {
        check("item 12 is in 2 places", |_, state| has(state, 3).push(12));
        check("item 10 is in 2 places", |_, state| has(state, 3).push(10));
        check("item 11 is in 2 places", |_, state| state.market.push(offer(11, 40)));
    }

    #[test]
    fn items_that_vanish_or_come_from_nowhere_are_found() {
        check("item 14 is nowhere", |_, state| has(state, 1).clear());
        check("item 99 was never made", |_, state| has(state, 1).push(99));
    }

    #[test]
    fn an_item_that_was_sold_twice_is_found() {
        // The second buyer has paid for an item of the first one: sums and places are valid.
        check("item 10 was sold twice: to 2 and to 3", |accounts, state| {
            let again = accounts[1].events[0];
            accounts[2].events.push(again);
            *funds(state, 3) -= 30;
            *funds(state, 1) += 30;
        });
    }

    #[test]
    fn counts_that_disagree_are_found() {
        check("user 3 has 1 items, and counts 0", |accounts, _| accounts[2].events.clear());
        check("user 1 has 1 items, and counts 2", |accounts, _| accounts[0].events.truncate(3));
        check("4 items were listed and 2 bought, and 1 are on the market", |_, state| {
            let offer = state.market.pop().expect("there are two");
            has(state, 1).push(offer.item);
        });
        check("item 10 was sold at an offer that no user has listed", |accounts, _| {
            accounts[1].events[0].offer.price = 31;
        });
        check("user 3 has item 10, and has not bought it", |_, state| {
            *has(state, 2) = vec![11];
            *has(state, 3) = vec![10];
        });
    }

    #[test]
    fn of_many_violations_some_are_listed() {
        check("and 90 more", |accounts, _| accounts[0].made.1 += 99);
    }
}
