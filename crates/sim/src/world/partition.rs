//! Two primaries at once: a partition cuts a primary off with some of the processes, and its replica takes over for the others.
//!
//! 1. The replica has what was written before the partition, less its lag. It takes over after an outage.
//! 2. The former primary goes on, without a replica. At the end of the partition its data is gone, and its processes connect
//!    to the other one.
//! 3. Which processes are cut off depends on their machines, also for those that start meanwhile. Some reach one server with
//!    their own connections, and the other one with that for confirmations.

use crate::event::{Event, ServerEvent};
use crate::mutants::Mutant;
use crate::world::Sim;
use crate::world::faults::PrimaryIsolation;
use crate::world::scheduler::HostId;
use crate::world::server::Server;
use crate::world::time::Instant;
use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

/// A former primary, and the processes that it is cut off with.
pub(crate) struct IsolatedPrimary {
    pub(crate) server: Server,
    /// Those that reach it, and those whose confirmations do.
    hosts: [BTreeSet<HostId>; 2],
    /// Their machines.
    machines: [u8; 2],
}

impl IsolatedPrimary {
    /// Whether a link of this process leads to it: its own ones, or that for confirmations.
    pub(crate) fn has(&self, host: HostId, confirming: bool) -> bool {
        self.hosts[usize::from(confirming)].contains(&host)
    }
}

impl Sim {
    /// Whether the server confirms a write before its replica has it.
    pub(crate) fn confirms_too_early(&self) -> bool {
        self.mutant == Some(Mutant::ConfirmedBeforeReplicated)
    }

    /// Cuts the primary off. Its replica takes over after an outage.
    pub(crate) fn isolate_primary(self: &Arc<Self>, isolation: PrimaryIsolation) {
        let PrimaryIsolation { machines, outage, lasts } = isolation;
        let now = self.scheduler.now();
        let Some(lag) = self.fault_plan.replica_lag else { return };
        let hosts_of =
            |machines| (0..8).filter(move |at| has(machines, *at)).filter_map(|at| self.host_at(at));
        let hosts = machines.map(|machines| hosts_of(machines).collect());
        let mut net = self.net();
        if net.isolated.is_some() || !net.server.is_up {
            return;
        }
        let replicated = Instant(0) + now.since(Instant(0)).saturating_sub(lag);
        let promoted = net.server.promote_replica(replicated);
        let server = mem::replace(&mut net.server, promoted);
        let isolated = IsolatedPrimary { server, hosts, machines };
        let others: Vec<_> = net.links_where(|link| !isolated.has(link.host, link.confirming));
        net.isolated = Some(isolated);
        drop(net);
        self.record(&Event::Server(ServerEvent::Isolated));
        self.break_links_of(others);
        let sim = self.clone();
        self.scheduler.at(now + outage, None, move || {
            sim.net().server.is_up = true;
            sim.record(&Event::Server(ServerEvent::Promoted));
        });
        let sim = self.clone();
        self.scheduler.at(now + outage + lasts, None, move || sim.end_partition());
    }

    /// The former primary is no server any more (2).
    fn end_partition(self: &Arc<Self>) {
        let mut net = self.net();
        let Some(isolated) = net.isolated.take() else { return };
        let its = net.links_where(|link| isolated.has(link.host, link.confirming));
        drop(net);
        self.record(&Event::Server(ServerEvent::Rejoined));
        self.break_links_of(its);
    }

    /// A process has started on a machine (3).
    pub(crate) fn assign_server(&self, process_index: usize, host: HostId) {
        if let Some(isolated) = &mut self.net().isolated {
            for (hosts, machines) in isolated.hosts.iter_mut().zip(isolated.machines) {
                if has(machines, process_index) {
                    hosts.insert(host);
                }
            }
        }
    }
}

/// Whether a machine is one of these.
const fn has(machines: u8, at: usize) -> bool {
    machines >> at & 1 == 1
}
