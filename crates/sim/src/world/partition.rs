//! Two primaries at once: a partition cuts a primary off with some of the processes, and its replica takes over for the others.
//!
//! 1. The replica has what was written before the partition, less its lag. It takes over after an outage.
//! 2. The former primary goes on, without a replica. At the end of the partition its data is gone, and its processes connect
//!    to the other one.
//! 3. Which processes are cut off depends on their machines, also for those that start meanwhile.

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
    pub(crate) hosts: BTreeSet<HostId>,
    /// Their machines.
    machines: u8,
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
        let hosts: BTreeSet<_> =
            (0..8).filter(|at| has(machines, *at)).filter_map(|at| self.host_at(at)).collect();
        let mut net = self.net();
        if net.isolated.is_some() || !net.server.is_up {
            return;
        }
        let replicated = Instant(0) + now.since(Instant(0)).saturating_sub(lag);
        let promoted = net.server.promote_replica(replicated);
        let server = mem::replace(&mut net.server, promoted);
        // Before the processes are assigned to servers: their subscriptions are at the former one.
        net.isolated = Some(IsolatedPrimary { server, hosts: hosts.clone(), machines });
        drop(net);
        self.record(&Event::Server(ServerEvent::Isolated));
        self.break_links_of_others(&hosts);
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
        let Some(isolated) = self.net().isolated.take() else { return };
        self.record(&Event::Server(ServerEvent::Rejoined));
        for host in isolated.hosts {
            if !self.scheduler.is_dead(host) {
                self.break_links(host, None);
            }
        }
    }

    /// A process has started on a machine (3).
    pub(crate) fn assign_server(&self, process_index: usize, host: HostId) {
        if let Some(isolated) = &mut self.net().isolated
            && has(isolated.machines, process_index)
        {
            isolated.hosts.insert(host);
        }
    }
}

/// Whether a machine is one of these.
const fn has(machines: u8, at: usize) -> bool {
    machines >> at & 1 == 1
}
