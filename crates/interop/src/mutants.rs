//! Defects of Leasehold's clients, planted into what they send.
//!
//! Owns what each mutant changes: a few words of the scripts, or a channel. The code under test is the released one;
//! [`MutantProxy`](crate::mutant_proxy::MutantProxy) changes its requests on the way to the server.

use clap::ValueEnum;

/// A defect of Leasehold's clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mutant {
    /// Acquires a lock that another library holds.
    IgnoresTaken,
    /// Lets every owner enter.
    IgnoresOwner,
    /// Does not subscribe to the library's channel.
    IgnoresMessages,
    /// Publishes nothing when it leaves the lock free.
    PublishesNothing,
    /// Publishes on another channel.
    OtherChannel,
    /// Publishes a payload that the library does not understand.
    OtherPayload,
    /// Publishes at releases that keep the lock, too.
    PublishesEarly,
    /// Does not count re-entries.
    CountsOnce,
    /// Writes no field of the owner.
    NoOwner,
    /// Replaces the hold count by the number of Leasehold's holds.
    IgnoresForeignHolds,
    /// Makes keys without an expiry.
    NoExpiry,
    /// Sets the expiry of a foreign lock while it waits.
    ExtendsForeignLock,
    /// Writes its field into a foreign lock while it waits.
    WritesIntoForeignLock,
    /// Reports a renewal, and has sent none.
    NoRenewal,
    /// Takes a hold that is gone for a renewed one.
    IgnoresLoss,
    /// Reports a forced release of a foreign lock, and keeps the count.
    ForceReleasesNothing,
    /// Keeps the owner's count at a release.
    KeepsCount,
    /// Releases without comparing.
    ReleasesWithoutComparing,
}

/// A part of a script, and its replacement.
type Edit = (&'static str, &'static str);

impl Mutant {
    /// Its changes of the scripts.
    pub(crate) fn edits(self) -> &'static [Edit] {
        match self {
            Self::IgnoresMessages => &[],
            Self::IgnoresTaken => &[(
                "if not lock.value and grant_next(lock, request) == request then",
                "if not first_holder(lock) and grant_next(lock, request) == request then",
            )],
            Self::IgnoresOwner => &[(
                "if not lock.value or lock.value ~= request.token then return false end",
                "if not lock.value then return false end",
            )],
            Self::PublishesNothing => &[("publish(lock.channel, '0')", "")],
            Self::OtherChannel => &[("publish(lock.channel, '0')", "publish(lock.channel .. ':ours', '0')")],
            Self::OtherPayload => &[("publish(lock.channel, '0')", "publish(lock.channel, 'free')")],
            Self::PublishesEarly => &[(
                "if lock.freed and not lock.granted then",
                "if lock.freed and not lock.granted or lock.lowered then",
            )],
            Self::CountsOnce => &[(
                "lock.count, lock.lease_ms = lock.count + 1,",
                "lock.count, lock.lease_ms = math.max(lock.count, 1),",
            )],
            Self::NoOwner => &[
                (
                    "'leasehold', packed_holds(lock), lock.value, digits(lock.count))",
                    "'leasehold', packed_holds(lock))",
                ),
                ("'leasehold', lowered[1], lock.value, lowered[2])", "'leasehold', lowered[1])"),
            ],
            Self::IgnoresForeignHolds => {
                &[("lock.count, lock.lease_ms = lock.count + 1,", "lock.count, lock.lease_ms = #lock.holds,")]
            }
            Self::NoExpiry => &[(
                "create_hash(key, digits(math.max(1, lock.ttl_ms)), 'leasehold', packed_holds(lock)",
                "redis.call('HSET', key, 'leasehold', packed_holds(lock)",
            )],
            Self::ExtendsForeignLock => &[(
                "local position = request.nonce ~= ''",
                "if not first_holder(lock) then redis.call('PEXPIRE', lock.key, '60000') end local position = request.nonce ~= ''",
            )],
            Self::WritesIntoForeignLock => &[(
                "local position = request.nonce ~= ''",
                "if lock.value and not first_holder(lock) then redis.call('HSET', lock.key, 'leasehold', '0 0\\n' .. lock.value) end \
                 local position = request.nonce ~= ''",
            )],
            Self::NoRenewal => &[("if not extended then return 0 end", "do return 1 end")],
            Self::IgnoresLoss => {
                &[("if not extended then return 0 end", "if not extended then return 1 end")]
            }
            Self::ForceReleasesNothing => &[(
                "free_lock(lock)\naudit_ending(lock, 'force_released', '', nil, ARGV[4])",
                "audit_ending(lock, 'force_released', '', nil, ARGV[4])",
            )],
            Self::KeepsCount => &[(
                "if lock.freed then\nredis.call('DEL', lock.key)",
                "if lock.freed then\nredis.call('HDEL', lock.key, 'leasehold')",
            )],
            Self::ReleasesWithoutComparing => &[
                ("local found = hold_status(lock, claim)", "local found = 'held'"),
                ("end_holds(lock, function(holder) return holder.hold == claim.hold end)", "free_lock(lock)"),
            ],
        }
    }

    /// A script with the mutant's changes, or `None` if it has none of the changed parts.
    pub(crate) fn apply_to(self, script: &str) -> Option<String> {
        let changed =
            self.edits().iter().fold(script.to_owned(), |text, (old, new)| text.replace(&as_sent(old), new));
        (changed != script).then_some(changed)
    }

    /// The channel that is subscribed to in place of another.
    pub(crate) fn channel(self, channel: &str) -> String {
        match self {
            Self::IgnoresMessages => channel.replace("redisson_lock__channel:", "no_messages_here:"),
            _ => channel.to_owned(),
        }
    }
}

/// Lua as the scripts are sent, without the spaces that only readers need. No string in an edit has such a space.
fn as_sent(lua: &str) -> String {
    let is_separator = |c: Option<&char>| c.is_none_or(|c| ",{}=~<>".contains(*c));
    let all: Vec<char> = lua.chars().collect();
    let kept = (0..all.len())
        .filter(|at| all[*at] != ' ' || !(is_separator(all[..*at].last()) || is_separator(all.get(at + 1))));
    kept.map(|at| all[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_changed_part_is_in_a_script() {
        let lua = concat!(env!("CARGO_MANIFEST_DIR"), "/../redis/src/lua");
        let files = std::fs::read_dir(lua).expect("the scripts are there");
        let texts: Vec<_> = files
            .map(|file| file.expect("a file").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "lua"))
            .map(|path| std::fs::read_to_string(path).expect("a text"))
            .map(|text| as_sent(&text.lines().map(str::trim).collect::<Vec<_>>().join("\n")))
            .collect();
        for mutant in Mutant::value_variants() {
            for (old, _) in mutant.edits() {
                let found = texts.iter().map(|text| text.matches(&as_sent(old)).count()).sum::<usize>();
                assert!(found > 0, "{mutant:?} would change nothing: `{old}` is in no script");
            }
        }
    }
}
