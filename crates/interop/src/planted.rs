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
                "if not value and grant_next(request) == request then",
                "if not first_holder() and grant_next(request) == request then",
            )],
            Self::IgnoresOwner => &[(
                "if not value or value ~= request.token then return false end",
                "if not value then return false end",
            )],
            Self::Silent => &[("publish(channel, '0')", "")],
            Self::OtherChannel => &[("publish(channel, '0')", "publish(channel .. ':ours', '0')")],
            Self::OtherPayload => &[("publish(channel, '0')", "publish(channel, 'free')")],
            Self::PublishesEarly => {
                &[("if freed and not granted then", "if freed and not granted or lowered then")]
            }
            Self::CountsOnce => &[(
                "hold_count, longest_lease_ms = hold_count + 1,",
                "hold_count, longest_lease_ms = math.max(hold_count, 1),",
            )],
            Self::NoOwner => &[
                ("'leasehold', packed_holds(), value, digits(hold_count))", "'leasehold', packed_holds())"),
                ("'leasehold', lowered[1], value, lowered[2])", "'leasehold', lowered[1])"),
            ],
            Self::ForgetsTheirs => &[(
                "hold_count, longest_lease_ms = hold_count + 1,",
                "hold_count, longest_lease_ms = #holds,",
            )],
            Self::ForEver => {
                &[("digits(math.max(1, lock_ttl_ms)), EMPTY_LOCK, 'REPLACE'", "'0', EMPTY_LOCK, 'REPLACE'")]
            }
            Self::LengthensTheirs => &[(
                "local position = request.nonce ~= ''",
                "if not first_holder() then redis.call('PEXPIRE', KEYS[1], '60000') end local position = request.nonce ~= ''",
            )],
            Self::WritesIntoTheirs => &[(
                "local position = request.nonce ~= ''",
                "if value and not first_holder() then redis.call('HSET', KEYS[1], 'leasehold', '0 0\\n' .. value) end \
                 local position = request.nonce ~= ''",
            )],
            Self::NoRenewal => &[("if not extended then return 0 end", "do return 1 end")],
            Self::BelievesForEver => {
                &[("if not extended then return 0 end", "if not extended then return 1 end")]
            }
            Self::FreesNothing => &[(
                "free_lock()\naudit_ending('freed', '', nil, ARGV[4])",
                "audit_ending('freed', '', nil, ARGV[4])",
            )],
            Self::LeavesCount => &[(
                "if freed then\nredis.call('DEL', KEYS[1])",
                "if freed then\nredis.call('HDEL', KEYS[1], 'leasehold')",
            )],
            Self::ReleasesAny => &[
                ("local found = hold_status(claim)", "local found = 'held'"),
                ("end_holds(function(holder) return holder.hold == claim.hold end)", "free_lock()"),
            ],
        }
    }

    /// A script with the fault in it, or `None` if it concerns none of this one's words.
    pub(crate) fn planted(self, script: &str) -> Option<String> {
        let planted = self.edits().iter().fold(script.to_owned(), |text, (old, new)| text.replace(old, new));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_changed_stands_in_our_scripts() {
        let lua = concat!(env!("CARGO_MANIFEST_DIR"), "/../redis/src/lua");
        let files = std::fs::read_dir(lua).expect("the scripts are there");
        let texts: Vec<_> = files
            .map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("a text"))
            .map(|text| text.lines().map(str::trim).collect::<Vec<_>>().join("\n"))
            .collect();
        for fault in Fault::value_variants() {
            for (old, _) in fault.edits() {
                let found = texts.iter().map(|text| text.matches(old).count()).sum::<usize>();
                assert!(found > 0, "{fault:?} would change nothing: `{old}` is in no script");
            }
        }
    }
}
