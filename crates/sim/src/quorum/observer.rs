//! What happens in the world beside its clients: faults of nodes, and looks into them.

use crate::quorum::config::{Config, LONGEST_AWAY};
use crate::quorum::event::{Event, NODES};
use crate::quorum::network::Link;
use crate::quorum::node::Node;
use crate::quorum::world::World;
use crate::world::faults::FaultProfile;
use leasehold_testkit::Random;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// How often the nodes are looked into.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often a node that is to forget is looked at, until a majority keeps all its holds without it.
const HEALED_LOOKS: u32 = 40;

/// The nodes, and the links of all clients to them.
#[derive(Clone)]
pub(crate) struct Nodes {
    pub(crate) world: Arc<World>,
    pub(crate) all: Vec<Arc<Node>>,
    pub(crate) links: Vec<Arc<Link>>,
}

impl Nodes {
    /// Injects faults until they end.
    pub(crate) async fn inject_faults(self, config: Arc<Config>, random: Random) {
        let end_at = config.messages.end_at;
        while self.world.now() < end_at {
            let pause = random.below(u64::try_from(config.fault_pause.as_micros()).unwrap_or(1) + 1);
            sleep(Duration::from_micros(pause).min(end_at.since(self.world.now()))).await;
            if self.world.now() < end_at {
                self.inject_fault(&config, &random).await;
            }
        }
        // All nodes are back by then.
        sleep(LONGEST_AWAY).await;
        self.world.record(&Event::FaultsEnded);
    }

    async fn inject_fault(&self, config: &Config, random: &Random) {
        let node = &self.all[usize::try_from(random.below(NODES as u64)).unwrap_or(0)];
        if random.chance(config.forgets) {
            // Only some of the runs lose what a majority needs.
            let if_healed = config.profile != FaultProfile::DataLoss || random.chance(300);
            let mut looks = 0;
            while !node.forget(&self.all, if_healed) && looks < HEALED_LOOKS {
                looks += 1;
                sleep(Duration::from_millis(random.between(1, 50))).await;
            }
            return;
        }
        let longest = *random.pick(&[LONGEST_AWAY / 80, LONGEST_AWAY / 8, LONGEST_AWAY]);
        let percent = u32::try_from(random.between(1, 100)).unwrap_or(1);
        let lasts = longest * percent / 100;
        if random.chance(600) {
            let what = if random.chance(500) { "is down" } else { "is silent" };
            node.leave(lasts, what == "is down");
            self.world.record(&Event::Fault { what, client: None, node: node.number });
        } else {
            let link = random.pick(&self.links);
            link.cut(lasts);
            let (client, node) = (Some(link.client), link.node.number);
            self.world.record(&Event::Fault { what: "is cut off", client, node });
        }
    }

    /// Looks into the nodes now and then.
    pub(crate) async fn look(self) {
        loop {
            sleep(LOOK_INTERVAL).await;
            for node in self.all.iter().filter(|node| node.is_away()) {
                self.world.record(&Event::Fault { what: "is away", client: None, node: node.number });
            }
            for link in self.links.iter().filter(|link| link.is_cut()) {
                let (client, node) = (Some(link.client), link.node.number);
                self.world.record(&Event::Fault { what: "is cut off still", client, node });
            }
            self.world.sample_validity();
            for live in self.world.guards() {
                let Some(guard) = live.guard.upgrade() else { continue };
                let Some(hold) = self.world.holds(|holds| holds.get(live.hold).cloned()) else { continue };
                let held_by = self.all.iter().filter(|node| node.keeps_until(&hold).is_some()).count();
                let (is_valid, votes) = (guard.check().is_ok(), guard.votes());
                self.world.record(&Event::Seen { guard: live.id, is_valid, held_by, votes });
            }
            for node in &self.all {
                for (lock, hold) in node.holders() {
                    self.world.record(&Event::SeenAtNode { node: node.number, lock, hold });
                }
            }
            self.world.record(&Event::Tick);
        }
    }

    /// Reports what is held after all clients have ended and all leases are over.
    pub(crate) fn report_remains(&self) {
        for node in &self.all {
            for lock in self.world.locks.iter().filter(|lock| node.is_held(lock)) {
                let lock = self.world.lock_id(lock);
                self.world.record(&Event::Remains { node: node.number, lock });
            }
        }
    }
}
