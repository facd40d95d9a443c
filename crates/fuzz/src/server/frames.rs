//! Frames of RESP3: where their elements are, changes to one, and new ones.

use crate::input::{Input, NUMBERS};
use std::ops::Range;

/// The types of elements.
const TYPES: &[u8] = b"+-:$*%~>|_#,(!=";
/// Types of text with a length.
const BULK: &[u8] = b"$!=";
/// Words that mean something to the client.
const TEXTS: [&str; 32] = [
    "granted",
    "taken",
    "ended",
    "held",
    "released",
    "evicted",
    "force_released",
    "queued",
    "vanished",
    "superseded",
    "forgotten",
    "kind",
    "format",
    "range",
    "differ",
    "deadlock",
    "upgradable",
    "changed",
    "proclaimed",
    "not_held",
    "resized",
    "alive",
    "gone",
    "cooldown",
    "open",
    "",
    "OK",
    "1762000000000001",
    "-",
    "r",
    "p1:3",
    "\u{7}\u{202e}\n\t",
];
/// Errors of servers.
const ERRORS: [&str; 16] = [
    "ERR x",
    "NOSCRIPT x",
    "MOVED 1 host:1",
    "ASK 1 host:1",
    "READONLY x",
    "OOM x",
    "NOAUTH x",
    "WRONGPASS x",
    "NOPERM x",
    "LOADING x",
    "BUSY x",
    "MASTERDOWN x",
    "CLUSTERDOWN x",
    "TRYAGAIN x",
    "MISCONF x",
    "",
];
/// How deep a value nests at most, unless it is meant to be deep.
const MAX_DEPTH: u32 = 4;

/// The first line of each element of a frame.
pub(super) fn heads(frame: &[u8]) -> Vec<Range<usize>> {
    let (mut heads, mut at) = (Vec::new(), 0);
    while let Some(length) = frame[at..].windows(2).position(|pair| pair == b"\r\n") {
        let end = at + length + 2;
        heads.push(at..end);
        let is_bulk = BULK.contains(&frame[at]);
        let length = if is_bulk { number(&frame[at + 1..end - 2]) } else { None };
        at = length.map_or(end, |length| end + length + 2);
        if at >= frame.len() {
            break;
        }
    }
    heads
}

fn number(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// How long the first frame is, as the client reads it; `None` if it is incomplete, or no client can read it.
pub(super) fn length(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut missing) = (0, 1_u64);
    while missing > 0 {
        let end = at + bytes.get(at..)?.windows(2).position(|pair| pair == b"\r\n")?;
        let kind = *bytes.get(at).filter(|_| end > at)?;
        let number = || std::str::from_utf8(&bytes[at + 1..end]).ok()?.trim().parse::<i64>().ok();
        missing -= 1;
        let mut next = end + 2;
        match kind {
            b'$' if number()? < 0 => {}
            b'$' | b'!' | b'=' => {
                next = next.checked_add(usize::try_from(number()?).ok()?)?.checked_add(2)?;
            }
            b'*' | b'~' | b'>' => missing = missing.checked_add(u64::try_from(number()?).unwrap_or(0))?,
            b'%' => missing = missing.checked_add(u64::try_from(number()?).ok()?.checked_mul(2)?)?,
            // The value follows the pairs.
            b'|' => {
                missing =
                    missing.checked_add(u64::try_from(number()?).ok()?.checked_mul(2)?.checked_add(1)?)?;
            }
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {}
            _ => return None,
        }
        at = next;
    }
    (at <= bytes.len()).then_some(at)
}

/// A frame with one element changed.
pub(super) fn changed(frame: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let heads = heads(frame);
    if heads.is_empty() {
        return frame.to_vec();
    }
    let at = input.below(heads.len());
    let head = heads[at].clone();
    // With the text that belongs to it, but without the elements of an aggregate.
    let end = heads.get(at + 1).map_or(frame.len(), |next| next.start);
    let (before, own, after) = (&frame[..head.start], &frame[head.start..end], &frame[end..]);
    let kind = frame[head.start];
    match input.below(10) {
        0 => {
            let number = input.one_of(&NUMBERS);
            let body = &frame[head.end..];
            [before, &[kind], number.as_bytes(), b"\r\n", body].concat()
        }
        1 => [before, &[input.one_of(TYPES)], &frame[head.start + 1..]].concat(),
        2 => [before, &*text(input.one_of(&TEXTS).as_bytes()), after].concat(),
        3 => [before, &*text(input.bytes()), after].concat(),
        4 => [before, after].concat(),
        5 => [before, own, own, after].concat(),
        6 => [before, &*value(input, 0), after].concat(),
        7 => [before, &*deep(input), after].concat(),
        8 => frame[..head.start + input.below(own.len())].to_vec(),
        _ => [before, b":", input.one_of(&NUMBERS).as_bytes(), b"\r\n", after].concat(),
    }
}

/// A text with its length.
pub(super) fn text(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// A push of texts.
pub(super) fn push(words: &[&[u8]]) -> Vec<u8> {
    let mut frame = format!(">{}\r\n", words.len()).into_bytes();
    for word in words {
        frame.extend(text(word));
    }
    frame
}

/// Arrays in arrays.
fn deep(input: &mut Input<'_>) -> Vec<u8> {
    let depth = [50, 99, 100, 101, 128, 1_000, 10_000, 100_000][input.below(8)];
    let open =
        input.one_of(&["*1\r\n", "*2\r\n:1\r\n", "%1\r\n+a\r\n", "|1\r\n+a\r\n", "~1\r\n", ">2\r\n+a\r\n"]);
    [&open.repeat(depth), ":1\r\n"].concat().into_bytes()
}

/// Any value.
pub(super) fn value(input: &mut Input<'_>, depth: u32) -> Vec<u8> {
    let word = |input: &mut Input<'_>| input.one_of(&TEXTS).as_bytes();
    match input.below(if depth < MAX_DEPTH { 18 } else { 10 }) {
        0 => text(word(input)),
        1 => [b"+", word(input), b"\r\n"].concat(),
        2 => [b"-", input.one_of(&ERRORS).as_bytes(), b"\r\n"].concat(),
        3 | 4 => [b":", input.one_of(&NUMBERS).as_bytes(), b"\r\n"].concat(),
        5 => b"_\r\n".to_vec(),
        6 => [&b","[..], input.one_of(&[&b"1.5"[..], b"inf", b"-inf", b"nan", b"1e400", b"x"]), b"\r\n"]
            .concat(),
        7 => [&b"#"[..], input.one_of(&[&b"t"[..], b"f", b"x"]), b"\r\n"].concat(),
        8 => text(input.bytes()),
        9 => [b"(", input.one_of(&NUMBERS).as_bytes(), b"\r\n"].concat(),
        kind => {
            let count = input.below(8);
            let (open, elements) = match kind {
                10..=14 => ("*", count),
                15 => ("%", 2 * count),
                16 => ("~", count),
                _ => ("|", 2 * count + 1),
            };
            let mut frame = format!("{open}{count}\r\n").into_bytes();
            (0..elements).for_each(|_| frame.extend(value(input, depth + 1)));
            frame
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_ends_where_the_client_ends_it() {
        for frame in [
            "+a\nb\r\n",
            "*2\r\n$4\r\na\r\nb\r\n_\r\n",
            "|1\r\n+a\r\n:1\r\n:2\r\n",
            "%1\r\n+c\r\n:1\r\n",
            "$-1\r\n",
        ] {
            assert_eq!(length((frame.to_owned() + "+x\r\n").as_bytes()), Some(frame.len()), "{frame:?}");
            assert_eq!(length(&frame.as_bytes()[..frame.len() - 1]), None, "{frame:?}");
        }
        for none in ["", "x\r\n", "$x\r\n", "%-1\r\n", "\r\n", "$9223372036854775807\r\n"] {
            assert_eq!(length(none.as_bytes()), None, "{none:?}");
        }
    }

    #[test]
    fn each_element_has_a_head() {
        let frame = b"*3\r\n$4\r\na\r\nb\r\n%1\r\n+c\r\n:1\r\n_\r\n";
        let shown: Vec<_> = heads(frame).into_iter().map(|head| &frame[head]).collect();
        assert_eq!(shown, [&b"*3\r\n"[..], b"$4\r\n", b"%1\r\n", b"+c\r\n", b":1\r\n", b"_\r\n"]);
    }
}
