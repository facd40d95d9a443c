//! The diagnosis of one server: its settings, and the difference between its clock and the local clock.
//!
//! [`diagnose`] owns the rules.

use super::{Backend, RedisStore, SessionOutcome};
use crate::config::RedisConfig;
use crate::conn::connect::try_connections;
use crate::diagnose;
use crate::reported_findings::Source;
use crate::script::reply;
use crate::trials::{self, Confirmations};
use leasehold_store::{
    ClockDifference, Diagnosis, Environment, Executed, Fault, FaultKind, Finding, FindingKind, Outcome,
    Phase, Severity, System, Trial, TrialKind, TrialOutcome,
};
use redis::{Pipeline, Value};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;
/// Number of clock readings; the one with the shortest round trip is the most precise.
const CLOCK_READINGS: usize = 5;
/// Clock difference from which a finding is reported. Clocks that NTP synchronizes differ by less.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);

impl RedisStore {
    /// Reads the server's settings, compares its clock with the local clock, and tries what locks need. If the user lacks permissions, the
    /// result is incomplete.
    pub(crate) async fn diagnose_node(
        &self,
        slot: u16,
        deadline: Instant,
    ) -> Result<Diagnosis, SessionOutcome> {
        let mut requests = Pipeline::with_capacity(2);
        requests.add_command(diagnose::request());
        requests.cmd("ACL").arg("WHOAMI");
        let mut replies = self.send_commands(slot, &requests, |_, _| true, deadline).await?.into_iter();
        let (info, user) = (replies.next().unwrap_or_default(), replies.next());
        let info = diagnose::info_text(&info);
        let info = info.map_err(|kind| Outcome::Failed(Executed::No, self.fault(kind, Phase::Reply)))?;
        let mut found = Diagnosis::new(&**self.node());
        diagnose::fill(&info, self.min_uptime(), &mut found);
        found.user = user.as_ref().and_then(|user| reply::word(user).ok());
        (found.clock, found.round_trip) = self.compare_clocks(slot, deadline).await?;
        if let Some(clock) = found.clock.filter(exceeds_limit) {
            found.findings.push(Finding::new(FindingKind::ClockDiffers(clock), Severity::Notice));
        }
        found.trials = self.try_server(slot, deadline).await?;
        found.findings.extend(trials::findings(&found.trials));
        found.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        if let Some(config) = self.config() {
            config.mark_accepted(&mut found.findings);
        }
        Ok(found)
    }

    /// One slot of each primary, or 0 on a server that is no cluster. Not for use by others: it may change.
    #[doc(hidden)]
    pub async fn primary_slots(&self, within: Duration) -> Result<Vec<u16>, Fault> {
        let Some(cluster) = self.cluster() else { return Ok(vec![0]) };
        let map = cluster.map(Instant::now() + within).await?;
        Ok(map.primaries().iter().filter_map(|primary| map.slots_of(primary).first().copied()).collect())
    }

    /// Sends plain commands to the primary of a slot. An error of the server is a value. Not for use by others: it may change.
    #[doc(hidden)]
    pub async fn send_plain(
        &self,
        slot: u16,
        commands: &Pipeline,
        within: Duration,
    ) -> Result<Vec<Value>, Fault> {
        let sent = self.send_commands(slot, commands, |_, _| true, Instant::now() + within).await;
        sent.map_err(|outcome| match outcome {
            Outcome::Failed(_, fault) => fault,
            Outcome::Done(_) => self.fault(FaultKind::Disconnected, Phase::Reply),
        })
    }

    /// Tries what locks need on one node of a cluster, unless that is skipped. Fails if the node must not be used.
    pub(super) async fn try_cluster(&self, config: &RedisConfig) -> Result<(), Fault> {
        const SLOT: u16 = 0;
        if config.are_trials_skipped() {
            return Ok(());
        }
        let confirmed = config.confirmations();
        let request = trials::request(&self.keys, Some(SLOT), self.environment().random(), confirmed);
        let deadline = Instant::now() + config.attempt_timeout();
        // If the slot has no node now, nothing is known, and the first operation there says so.
        let Ok(replies) = self.send_commands(SLOT, &request, |_, _| true, deadline).await else {
            return Ok(());
        };
        let findings = trials::findings(&trials::outcomes(&replies, confirmed));
        config.reported().record(config.address(), Source::Trials, &findings);
        match diagnose::refusal(&findings, false, config) {
            Some(kind) => Err(self.fault(kind, Phase::Handshake)),
            None => Ok(()),
        }
    }

    /// Tries what locks need: on a server of its own by two further connections, too.
    async fn try_server(&self, slot: u16, deadline: Instant) -> Result<Vec<Trial>, SessionOutcome> {
        let slot_of_keys = matches!(*self.backend, Backend::Cluster(_)).then_some(slot);
        let confirmed = match &*self.backend {
            Backend::Link(link) => link.config().confirmations(),
            Backend::Cluster(cluster) => cluster.config().confirmations(),
            Backend::Borrowed(_) => Confirmations::NONE,
        };
        let request = trials::request(&self.keys, slot_of_keys, self.environment().random(), confirmed);
        let replies = self.send_commands(slot, &request, |_, _| true, deadline).await?;
        let mut tried = trials::outcomes(&replies, confirmed);
        let not_tried = |why: &str| {
            let outcome = TrialOutcome::NotTried(why.to_owned());
            [TrialKind::Atomicity, TrialKind::Messages].map(|kind| Trial::new(kind, outcome.clone()))
        };
        match &*self.backend {
            Backend::Link(_) if !trials::runs_scripts(&tried) => tried.extend(not_tried("no script runs")),
            Backend::Link(link) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let between = tokio::time::timeout(left, try_connections(link.config(), link.node())).await;
                match between {
                    Ok(Ok(trials)) => tried.extend(trials),
                    Ok(Err(fault)) => tried.extend(not_tried(&fault.to_string())),
                    Err(_) => tried.extend(not_tried("no answer in time")),
                }
            }
            Backend::Borrowed(_) => tried.extend(not_tried("it needs another connection than the one lent")),
            Backend::Cluster(_) => tried.extend(not_tried("the server is a node of a cluster")),
        }
        Ok(tried)
    }

    fn environment(&self) -> &dyn Environment {
        match &*self.backend {
            Backend::Link(link) => &**link.config().shared_environment(),
            Backend::Cluster(cluster) => &**cluster.config().shared_environment(),
            Backend::Borrowed(_) => &System,
        }
    }

    /// Difference between the server's clock and the local clock, and the shortest round trip seen.
    async fn compare_clocks(
        &self,
        slot: u16,
        deadline: Instant,
    ) -> Result<(Option<ClockDifference>, Duration), SessionOutcome> {
        let environment = self.environment();
        let mut request = Pipeline::with_capacity(1);
        request.cmd("TIME");
        let (mut clock, mut shortest) = (None, Duration::MAX);
        for _ in 0..CLOCK_READINGS {
            let (sent, wall) = (environment.now(), environment.system_time());
            let values = self.send_commands(slot, &request, |_, _| true, deadline).await?;
            let round_trip = environment.now().since(sent);
            if round_trip < shortest {
                let theirs = values.first().and_then(|value| reply::now_us(value).ok());
                (clock, shortest) =
                    (theirs.and_then(|us| clock_difference(us, wall, round_trip)), round_trip);
            }
        }
        Ok((clock, shortest))
    }
}

/// Difference between a clock that showed `theirs_us` and the local clock, which showed `wall` when the request was
/// sent. The server read its clock at some time between then and the reply.
fn clock_difference(theirs_us: u64, wall: SystemTime, round_trip: Duration) -> Option<ClockDifference> {
    let uncertainty = round_trip / 2;
    let ours = wall.duration_since(SystemTime::UNIX_EPOCH).ok()? + uncertainty;
    let ahead_us = i128::from(theirs_us) - i128::try_from(ours.as_micros()).ok()?;
    Some(ClockDifference { ahead_us: ahead_us.try_into().ok()?, uncertainty })
}

/// Whether the difference exceeds the limit beyond measurement uncertainty.
fn exceeds_limit(clock: &ClockDifference) -> bool {
    Duration::from_micros(clock.ahead_us.unsigned_abs()) > MAX_CLOCK_DIFFERENCE + clock.uncertainty
}
