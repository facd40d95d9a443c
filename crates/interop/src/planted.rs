//! Faults planted between Leasehold's clients and the server.
//!
//! Owns what each fault changes: a few words of the scripts, or a channel. The code under test is the released one;
//! [`Wire`](crate::wire::Wire) changes what it sends.

use clap::ValueEnum;

/// What is wrong with ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// Takes the lock of a client of theirs for a free one.
    IgnoresTaken,
    /// Lets every owner enter.
    IgnoresOwner,
    /// Does not listen to their channel.
    Deaf,
    /// Publishes nothing when it leaves the lock free.
    Silent,
    /// Publishes on another channel than theirs.
    OtherChannel,
    /// Publishes what they do not understand.
    OtherPayload,
    /// Publishes at releases that keep the lock, too.
    PublishesEarly,
    /// Does not count re-entries.
    CountsOnce,
    /// Writes no field of the owner.
    NoOwner,
    /// Writes its own holds for the count, and forgets theirs.
    ForgetsTheirs,
    /// Makes keys that have no expiry.
    ForEver,
    /// Sets the end of their lock while it waits.
    LengthensTheirs,
    /// Writes its field into their lock while it waits.
    WritesIntoTheirs,
    /// Says that it has renewed, and has not.
    NoRenewal,
    /// Takes a hold that is gone for one that was renewed.
    BelievesForEver,
    /// Says that it has freed their lock by force, and leaves the count.
    FreesNothing,
    /// Leaves the owner's count when it releases.
    LeavesCount,
    /// Releases without comparing.
    ReleasesAny,
}

/// Words of a script, and what stands there instead.
type Edit = (&'static str, &'static str);

impl Fault {
    /// What it changes in the scripts.
    pub(crate) fn edits(self) -> &'static [Edit] {
        match self {
            Self::Deaf => &[],
            Self::IgnoresTaken => &[(
                "if not lock.value and grant_next(lock, request) == request then",
                "if not first_holder(lock) and grant_next(lock, request) == request then",
            )],
            Self::IgnoresOwner => &[(
                "if not lock.value or lock.value ~= request.token then return false end",
                "if not lock.value then return false end",
            )],
            Self::Silent => &[("publish(lock.channel, '0')", "")],
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
            Self::ForgetsTheirs => {
                &[("lock.count, lock.lease_ms = lock.count + 1,", "lock.count, lock.lease_ms = #lock.holds,")]
            }
            Self::ForEver => {
                &[("digits(math.max(1, lock.ttl_ms)), EMPTY_LOCK, 'REPLACE'", "'0', EMPTY_LOCK, 'REPLACE'")]
            }
            Self::LengthensTheirs => &[(
                "local position = request.nonce ~= ''",
                "if not first_holder(lock) then redis.call('PEXPIRE', lock.key, '60000') end local position = request.nonce ~= ''",
            )],
            Self::WritesIntoTheirs => &[(
                "local position = request.nonce ~= ''",
                "if lock.value and not first_holder(lock) then redis.call('HSET', lock.key, 'leasehold', '0 0\\n' .. lock.value) end \
                 local position = request.nonce ~= ''",
            )],
            Self::NoRenewal => &[("if not extended then return 0 end", "do return 1 end")],
            Self::BelievesForEver => {
                &[("if not extended then return 0 end", "if not extended then return 1 end")]
            }
            Self::FreesNothing => &[(
                "free_lock(lock)\naudit_ending(lock, 'freed', '', nil, ARGV[4])",
                "audit_ending(lock, 'freed', '', nil, ARGV[4])",
            )],
            Self::LeavesCount => &[(
                "if lock.freed then\nredis.call('DEL', lock.key)",
                "if lock.freed then\nredis.call('HDEL', lock.key, 'leasehold')",
            )],
            Self::ReleasesAny => &[
                ("local found = hold_status(lock, claim)", "local found = 'held'"),
                ("end_holds(lock, function(holder) return holder.hold == claim.hold end)", "free_lock(lock)"),
            ],
        }
    }

    /// A script with the fault in it, or `None` if it concerns none of this one's words.
    pub(crate) fn planted(self, script: &str) -> Option<String> {
        let planted =
            self.edits().iter().fold(script.to_owned(), |text, (old, new)| text.replace(&sent(old), new));
        (planted != script).then_some(planted)
    }

    /// The channel that is listened to in place of another.
    pub(crate) fn channel(self, channel: &str) -> String {
        match self {
            Self::Deaf => channel.replace("redisson_lock__channel:", "no_messages_here:"),
            _ => channel.to_owned(),
        }
    }
}

/// Lua as the scripts have it, without the spaces that only readers need. No string in an edit has such a space.
fn sent(lua: &str) -> String {
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
    fn what_is_changed_stands_in_our_scripts() {
        let lua = concat!(env!("CARGO_MANIFEST_DIR"), "/../redis/src/lua");
        let files = std::fs::read_dir(lua).expect("the scripts are there");
        let texts: Vec<_> = files
            .map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("a text"))
            .map(|text| sent(&text.lines().map(str::trim).collect::<Vec<_>>().join("\n")))
            .collect();
        for fault in Fault::value_variants() {
            for (old, _) in fault.edits() {
                let found = texts.iter().map(|text| text.matches(&sent(old)).count()).sum::<usize>();
                assert!(found > 0, "{fault:?} would change nothing: `{old}` is in no script");
            }
        }
    }
}
