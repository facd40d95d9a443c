//! The animated picture: SVG with keyframes of CSS, without scripts, so that it moves wherever a picture is shown.
//!
//! 1. Each row of a screen is a text for as long as it does not change. Its keyframes show it at its time.
//! 2. A reader that wants no motion sees the end.

use std::fmt::Write as _;
use std::time::Duration;

use super::Recording;
use super::terminal::{COLUMNS, Change, ROWS};

/// The width of a column, the height of a row, and the space around, in pixels.
const COLUMN: f64 = 8.4;
const ROW: u32 = 18;
const MARGIN: u32 = 14;
/// The height of a terminal's title.
const TITLE: u32 = 26;

/// A row that stays the same for a time.
#[derive(Debug, PartialEq, Eq)]
struct Span {
    row: usize,
    text: String,
    from: Duration,
    /// `None` if it stays.
    until: Option<Duration>,
}

/// Draws the terminals one below the other.
pub(super) fn draw(titles: [&str; 2], recording: &Recording) -> String {
    let width = (COLUMN * f64::from(COLUMNS.get())).ceil() + f64::from(2 * MARGIN);
    let pane = TITLE + ROW * u32::from(ROWS.get()) + MARGIN;
    let height = 2 * pane + MARGIN;
    let (mut style, mut body) = (String::new(), String::new());
    let mut count = 0;
    for (title, (changes, top)) in titles.iter().zip(recording.screens.iter().zip([0, pane + MARGIN])) {
        let _ = writeln!(
            body,
            "<rect y=\"{top}\" width=\"100%\" height=\"{pane}\" rx=\"6\" fill=\"#14181d\"/>\n\
             <text x=\"{MARGIN}\" y=\"{}\" fill=\"#8b949e\">{title}</text>",
            top + TITLE - 8
        );
        for span in spans(changes) {
            let row = u32::try_from(span.row).unwrap_or(u32::MAX);
            let y = top + TITLE + ROW * row + 14;
            let class = if span.until.is_none() { " class=\"end\"" } else { "" };
            let columns = u32::try_from(span.text.chars().count()).unwrap_or(u32::MAX);
            let length = COLUMN * f64::from(columns);
            let _ = writeln!(
                body,
                "<text x=\"{MARGIN}\" y=\"{y}\" textLength=\"{length:.1}\" lengthAdjust=\"spacingAndGlyphs\"{class} \
                 style=\"animation-name:k{count}\">{}</text>",
                escaped(&span.text, title)
            );
            style += &keyframes(count, &span, recording.length);
            count += 1;
        }
    }
    let seconds = recording.length.as_secs_f64();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\" fill=\"#d8dee4\" \
         xml:space=\"preserve\">\n<title>Two hosts run the same job: the second waits, and runs when the first has finished</title>\n\
         <style>\ntext{{white-space:pre}}\ntext[style]{{visibility:hidden;animation:{seconds:.2}s step-end infinite}}\ntext.end{{visibility:visible}}\n\
         @media (prefers-reduced-motion:reduce){{text[style]{{animation:none}}}}\n{style}</style>\n{body}</svg>\n"
    )
}

/// The rows that are not empty, with their times (1).
fn spans(changes: &[Change]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for change in changes {
        for (row, text) in change.rows.iter().enumerate() {
            let shown = spans.iter_mut().rev().find(|span| span.row == row && span.until.is_none());
            match shown {
                Some(span) if span.text == *text => continue,
                Some(span) => span.until = Some(change.at),
                None => {}
            }
            if !text.is_empty() {
                spans.push(Span { row, text: text.clone(), from: change.at, until: None });
            }
        }
    }
    spans.retain(|span| span.until != Some(span.from));
    spans
}

fn keyframes(number: usize, span: &Span, length: Duration) -> String {
    let percent = |at: Duration| 100.0 * at.as_secs_f64() / length.as_secs_f64();
    let mut text = format!("@keyframes k{number}{{");
    if span.from > Duration::ZERO {
        text += "0%{visibility:hidden}";
    }
    let _ = write!(text, "{:.3}%{{visibility:visible}}", percent(span.from));
    // What stays is shown until the end, and is hidden when it begins again.
    let end = span
        .until
        .map_or(("100.000".to_owned(), "visible"), |until| (format!("{:.3}", percent(until)), "hidden"));
    let _ = writeln!(text, "{}%{{visibility:{}}}}}", end.0, end.1);
    text
}

/// A text for SVG. The prompt is in a colour of its own.
fn escaped(text: &str, host: &str) -> String {
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let prompt = format!("{host}$");
    match text.strip_prefix(&prompt) {
        Some(rest) => format!("<tspan fill=\"#7ee787\">{prompt}</tspan>{}", escape(rest)),
        None => escape(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(at: u64, rows: &[&str]) -> Change {
        Change { at: Duration::from_secs(at), rows: rows.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn a_row_is_one_text_for_as_long_as_it_does_not_change() {
        let spans = spans(&[change(0, &["a", ""]), change(2, &["a", "b"]), change(3, &["c", "b"])]);
        let span = |row, text: &str, from, until: Option<u64>| Span {
            row,
            text: text.to_owned(),
            from: Duration::from_secs(from),
            until: until.map(Duration::from_secs),
        };
        assert_eq!(spans, [span(0, "a", 0, Some(3)), span(1, "b", 2, None), span(0, "c", 3, None)]);
    }

    #[test]
    fn each_text_has_keyframes_and_no_character_of_it_is_a_tag() {
        let screens = [vec![change(0, &["web-1$ a <b> & c"])], vec![change(1, &["x"]), change(2, &[""])]];
        let picture = draw(["web-1", "web-2"], &Recording { screens, length: Duration::from_secs(4) });
        assert!(
            picture.contains("<tspan fill=\"#7ee787\">web-1$</tspan> a &lt;b&gt; &amp; c</text>"),
            "{picture}"
        );
        for (text, keyframes) in [
            ("k0", "@keyframes k0{0.000%{visibility:visible}100.000%{visibility:visible}}"),
            (
                "k1",
                "@keyframes k1{0%{visibility:hidden}25.000%{visibility:visible}50.000%{visibility:hidden}}",
            ),
        ] {
            assert!(picture.contains(&format!("animation-name:{text}\"")), "{picture}");
            assert!(picture.contains(keyframes), "{picture}");
        }
        assert!(!picture.contains("script"), "{picture}");
    }
}
