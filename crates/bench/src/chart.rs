//! Charts as SVG.
//!
//! Owns how a chart looks: its size, its colours, the places of the legend and the note. The scenario chooses the figures.
//! The same data give the same bytes, so a chart in the repository changes only with its figures: nothing here depends on
//! the time, the fonts of the machine, or randomness.
//!
//! 1. A missing figure (NaN) is not drawn. On a logarithmic axis a figure that is not positive is not drawn either: its bar
//!    is labelled 0, its point is left out.
//! 2. The width of text is an estimate, since the fonts of the viewer are unknown. Only the line breaks of the legend may
//!    depend on it.

mod scale;

use anyhow::{Context, Result, anyhow};
use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use scale::{Scale, number};
use std::fs;
use std::path::Path;

/// A chart of a scenario.
#[derive(Debug)]
pub(crate) struct Chart {
    /// The heading.
    pub(crate) title: String,
    /// The machine, the server and the rounds, in one line below the chart; no date.
    pub(crate) note: String,
    /// The axis of all values.
    pub(crate) y: Axis,
    /// The values.
    pub(crate) kind: Kind,
    /// Bounds to compare with, as dashed horizontal lines.
    pub(crate) limits: Vec<Limit>,
}

/// An axis.
#[derive(Debug)]
pub(crate) struct Axis {
    /// The quantity, with its unit.
    pub(crate) label: String,
    /// Whether it is logarithmic.
    pub(crate) log: bool,
}

/// A bound.
#[derive(Debug)]
pub(crate) struct Limit {
    /// Its value.
    pub(crate) at: f64,
    /// Its label.
    pub(crate) label: String,
}

/// The form of a chart.
#[derive(Debug)]
pub(crate) enum Kind {
    /// One bar for each series in each group. A group's name may have several lines.
    Bars {
        /// The names below the groups.
        groups: Vec<String>,
        /// As many values as there are groups.
        series: Vec<Series<Spread>>,
    },
    /// One line for each series.
    Lines {
        /// The axis of the varied quantity.
        x: Axis,
        /// Points in the order of their lines.
        series: Vec<Series<(f64, Spread)>>,
    },
}

/// The values of one colour.
#[derive(Debug)]
pub(crate) struct Series<T> {
    /// Its name in the legend.
    pub(crate) name: String,
    /// The values.
    pub(crate) values: Vec<T>,
}

/// A median, and the range of the values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    /// The median over the rounds.
    pub(crate) median: f64,
    /// The smallest of the rounds.
    pub(crate) least: f64,
    /// The greatest of the rounds.
    pub(crate) most: f64,
}

/// The size of every chart, in pixels.
const SIZE: (u32, u32) = (960, 560);
/// The space at the left and the right.
const MARGIN: i32 = 24;
/// The height of a line below the axes.
const LINE: u8 = 18;
/// Colours that colour-blind readers distinguish, too (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
    RGBColor(0, 0, 0),
];
const INK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(102, 102, 102);
const LIMIT: RGBColor = RGBColor(180, 30, 30);
const GRID: RGBColor = RGBColor(214, 214, 214);
const FINE_GRID: RGBColor = RGBColor(241, 241, 241);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;

impl Chart {
    /// Writes it to NAME.svg in a directory, which is created if necessary.
    pub(crate) fn draw(&self, directory: &Path, name: &str) -> Result<()> {
        let mut svg = String::new();
        self.paint(&mut svg).with_context(|| format!("drawing {name}"))?;
        let path = directory.join(name).with_extension("svg");
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&path, svg))
            .with_context(|| format!("writing {}", path.display()))
    }

    fn paint(&self, svg: &mut String) -> Result<()> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        drawn(root.fill(&WHITE))?;
        write(&root, &self.title, (MARGIN, 16), &text(24, INK, HPos::Left, VPos::Top, FontStyle::Bold))?;
        let below = self.legend(&root)?;
        let foot = size(1) - 12;
        write(
            &root,
            &self.note,
            (MARGIN, foot),
            &text(14, FAINT, HPos::Left, VPos::Bottom, FontStyle::Normal),
        )?;
        let mut plot = self.axes(&root, below)?;
        match &self.kind {
            Kind::Bars { groups, series } => bars(&root, &plot, groups, series)?,
            Kind::Lines { series, .. } => lines(&root, &plot, series)?,
        }
        for limit in &self.limits {
            draw_limit(&root, &mut plot, limit)?;
        }
        drawn(root.present())
    }

    /// Draws a swatch and a name for each series, in as many rows as needed. Returns the end of the last row.
    fn legend(&self, root: &Area<'_>) -> Result<i32> {
        let (mut x, mut y) = (MARGIN, 62);
        for (name, colour) in self.names().into_iter().zip(COLOURS.into_iter().cycle()) {
            let width = 18 + width_of(name, 15) + 26;
            if x > MARGIN && x + width > size(0) - MARGIN {
                (x, y) = (MARGIN, y + 22);
            }
            let swatch = [(x, y - 6), (x + 12, y + 6)];
            drawn(root.draw(&Rectangle::new(swatch, colour.filled())))?;
            write(root, name, (x + 18, y), &text(15, INK, HPos::Left, VPos::Center, FontStyle::Normal))?;
            x += width;
        }
        Ok(y + 24)
    }

    fn names(&self) -> Vec<&str> {
        match &self.kind {
            Kind::Bars { series, .. } => series.iter().map(|one| one.name.as_str()).collect(),
            Kind::Lines { series, .. } => series.iter().map(|one| one.name.as_str()).collect(),
        }
    }

    /// Draws the axes with the grid and the labels.
    fn axes<'a, 'b>(&self, root: &'a Area<'b>, below: i32) -> Result<Plot<'a, 'b>> {
        let (x, x_label) = match &self.kind {
            Kind::Bars { groups, .. } => (Scale::of_groups(groups.len()), ""),
            Kind::Lines { x, series } => {
                let points = series.iter().flat_map(|one| &one.values).map(|(at, _)| *at);
                (Scale::of_points(points, x.log), x.label.as_str())
            }
        };
        let y = Scale::of_values(self.values(), self.y.log);
        let mut builder = ChartBuilder::on(root);
        builder.margin_top(below).margin_bottom(36).margin_left(MARGIN - 12).margin_right(MARGIN);
        builder.y_label_area_size(78).x_label_area_size(14 + i32::from(LINE) * self.lines_below());
        let mut plot = drawn(builder.build_cartesian_2d(x, y))?;
        let label = ("sans-serif", 15).into_font().color(&INK);
        let mut mesh = plot.configure_mesh();
        mesh.bold_line_style(GRID).light_line_style(FINE_GRID).axis_style(FAINT);
        mesh.label_style(label.clone()).axis_desc_style(label).y_desc(&self.y.label).x_desc(x_label);
        mesh.x_labels(30).y_labels(30).y_label_formatter(&|at| number(*at));
        let bars = matches!(self.kind, Kind::Bars { .. });
        // Names of groups have several lines, which an axis cannot write.
        let x_label = |at: &f64| if bars { String::new() } else { number(*at) };
        mesh.x_label_formatter(&x_label);
        if bars {
            mesh.disable_x_mesh();
        }
        drawn(mesh.draw())?;
        drop(mesh);
        Ok(plot)
    }

    /// The number of lines below the axes.
    fn lines_below(&self) -> i32 {
        let Kind::Bars { groups, .. } = &self.kind else { return 2 };
        let most = groups.iter().map(|name| name.lines().count()).max().unwrap_or(0);
        i32::try_from(most).unwrap_or(0).max(2)
    }

    /// All values that must fit on the axis.
    fn values(&self) -> Vec<f64> {
        let both = |spread: &Spread| [spread.median, spread.least, spread.most];
        let mut values: Vec<f64> = match &self.kind {
            Kind::Bars { series, .. } => series.iter().flat_map(|one| &one.values).flat_map(both).collect(),
            Kind::Lines { series, .. } => {
                series.iter().flat_map(|one| &one.values).flat_map(|(_, spread)| both(spread)).collect()
            }
        };
        values.extend(self.limits.iter().map(|limit| limit.at));
        values
    }
}

/// Draws bars, each with its median above and a line from the smallest to the greatest value.
fn bars(root: &Area<'_>, plot: &Plot<'_, '_>, groups: &[String], series: &[Series<Spread>]) -> Result<()> {
    let floor = plot.y_range().start;
    #[allow(clippy::cast_precision_loss, reason = "some ten groups and series")]
    let (width, centre) = (0.84 / series.len().max(1) as f64, |group: usize| group as f64 + 0.5);
    let label = text(12, INK, HPos::Center, VPos::Bottom, FontStyle::Normal);
    for (nth, one) in series.iter().enumerate() {
        #[allow(clippy::cast_precision_loss, reason = "some ten groups and series")]
        let offset = width * nth as f64 - 0.42;
        for (group, spread) in one.values.iter().enumerate().filter(|(_, spread)| !spread.median.is_nan()) {
            let from = centre(group) + offset;
            let top = plot.backend_coord(&(from, spread.median.max(floor)));
            let bottom = plot.backend_coord(&(from + width, floor));
            let bar = Rectangle::new([(top.0 + 1, top.1), (bottom.0 - 1, bottom.1)], colour(nth).filled());
            drawn(root.draw(&bar))?;
            let middle = i32::midpoint(top.0, bottom.0);
            let most = whisker(root, plot, middle, from, *spread)?.min(top.1);
            if bottom.0 - top.0 >= 26 {
                write(root, &number(spread.median), (middle, most - 2), &label)?;
            }
        }
    }
    for (group, name) in groups.iter().enumerate() {
        let (x, y) = plot.backend_coord(&(centre(group), floor));
        for (line, below) in name.lines().zip((8..).step_by(usize::from(LINE))) {
            write(root, line, (x, y + below), &text(15, INK, HPos::Center, VPos::Top, FontStyle::Normal))?;
        }
    }
    Ok(())
}

/// Draws lines with dots, each with a line from the smallest to the greatest value.
fn lines(root: &Area<'_>, plot: &Plot<'_, '_>, series: &[Series<(f64, Spread)>]) -> Result<()> {
    let (across, up) = (plot.x_range(), plot.y_range());
    for (nth, one) in series.iter().enumerate() {
        let is_there = |(x, spread): &&(f64, Spread)| *x >= across.start && spread.median >= up.start;
        let points: Vec<_> = one.values.iter().filter(is_there).collect();
        let path = points.iter().map(|(x, spread)| plot.backend_coord(&(*x, spread.median)));
        drawn(root.draw(&PathElement::new(path.collect::<Vec<_>>(), colour(nth).stroke_width(2))))?;
        for (x, spread) in points {
            let at = plot.backend_coord(&(*x, spread.median));
            whisker(root, plot, at.0, *x, *spread)?;
            drawn(root.draw(&Circle::new(at, 5, WHITE.filled())))?;
            drawn(root.draw(&Circle::new(at, 4, colour(nth).filled())))?;
        }
    }
    Ok(())
}

/// Draws a line from the smallest to the greatest value at a column of pixels. Returns its upper end.
fn whisker(root: &Area<'_>, plot: &Plot<'_, '_>, column: i32, x: f64, spread: Spread) -> Result<i32> {
    let floor = plot.y_range().start;
    let row = |value: f64| plot.backend_coord(&(x, value.max(floor))).1;
    let (low, high) = (row(spread.least), row(spread.most));
    if low > high {
        for line in [
            [(column, low), (column, high)],
            [(column - 4, low), (column + 4, low)],
            [(column - 4, high), (column + 4, high)],
        ] {
            drawn(root.draw(&PathElement::new(line, INK)))?;
        }
    }
    Ok(high)
}

fn draw_limit(root: &Area<'_>, plot: &mut Plot<'_, '_>, limit: &Limit) -> Result<()> {
    let across = plot.x_range();
    let ends = [(across.start, limit.at), (across.end, limit.at)];
    drawn(plot.draw_series(DashedLineSeries::new(ends, 8, 5, LIMIT.stroke_width(2))))?;
    let (x, y) = plot.backend_coord(&ends[1]);
    // A background, so that it can be read in front of a bar.
    let background = [(x - 8 - width_of(&limit.label, 14), y - 18), (x, y - 2)];
    drawn(root.draw(&Rectangle::new(background, WHITE.mix(0.8).filled())))?;
    write(root, &limit.label, (x - 4, y - 3), &text(14, LIMIT, HPos::Right, VPos::Bottom, FontStyle::Normal))
}

fn write(root: &Area<'_>, what: &str, at: (i32, i32), style: &TextStyle<'_>) -> Result<()> {
    drawn(root.draw_text(what, style, at))
}

fn text(height: i32, colour: RGBColor, h: HPos, v: VPos, style: FontStyle) -> TextStyle<'static> {
    ("sans-serif", height, style).into_font().color(&colour).pos(Pos::new(h, v))
}

fn colour(nth: usize) -> RGBColor {
    COLOURS[nth % COLOURS.len()]
}

/// The approximate width of a text (2).
fn width_of(text: &str, height: i32) -> i32 {
    i32::try_from(text.chars().count()).unwrap_or(0) * height * 47 / 100
}

fn size(side: usize) -> i32 {
    let side = if side == 0 { SIZE.0 } else { SIZE.1 };
    i32::try_from(side).unwrap_or(i32::MAX)
}

/// Converts an error of the library, which borrows from the drawing.
fn drawn<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T> {
    result.map_err(|error| anyhow!("failed to draw the chart: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(median: f64) -> Spread {
        Spread { median, least: median * 0.8, most: median * 1.3 }
    }

    fn chart(kind: Kind, log: bool) -> Chart {
        Chart {
            title: "Hand-offs & waits".to_owned(),
            note: "2 cores, redis 7.0.15; medians of 5 rounds".to_owned(),
            y: Axis { label: "hand-offs a second".to_owned(), log },
            kind,
            limits: vec![Limit { at: 30.0, label: "a tenth of <tokio>".to_owned() }],
        }
    }

    fn bars(log: bool) -> Chart {
        let names = ["ours", "the book, another machine"];
        let series = names.map(|name| Series {
            name: name.to_owned(),
            values: vec![spread(2.5), spread(480.0), spread(f64::NAN)],
        });
        let groups = ["WATCH\n1+1", "one lock\n5+5", "lock per item\n5+5"].map(str::to_owned).to_vec();
        chart(Kind::Bars { groups, series: series.into() }, log)
    }

    fn lines(log: bool) -> Chart {
        let series = |name: &str, by: f64| Series {
            name: name.to_owned(),
            values: [2.0, 8.0, 64.0, 512.0, 4096.0, 10_000.0]
                .map(|x: f64| (x, spread(by * x.sqrt())))
                .to_vec(),
        };
        let x = Axis { label: "waiting tasks".to_owned(), log: true };
        chart(Kind::Lines { x, series: vec![series("Leasehold", 3.0), series("rslock", 9.0)] }, log)
    }

    /// Draws it twice, and searches for texts in it.
    fn check(chart: &Chart, texts: &[&str]) {
        // Set to keep the charts.
        let keep = std::env::var_os("LEASEHOLD_CHARTS").map(std::path::PathBuf::from);
        let dir = tempfile::tempdir().expect("a directory");
        let path = keep.as_deref().unwrap_or(dir.path());
        let log = if chart.y.log { "log" } else { "linear" };
        let name =
            format!("{}-{log}", if matches!(chart.kind, Kind::Bars { .. }) { "bars" } else { "lines" });
        let draw = || {
            chart.draw(path, &name).expect("it can be drawn");
            fs::read_to_string(path.join(format!("{name}.svg"))).expect("it was written")
        };
        let svg = draw();
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        for text in
            texts.iter().chain(&["Hand-offs &amp; waits", "medians of 5 rounds", "a tenth of &lt;tokio&gt;"])
        {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        assert_eq!(svg, draw(), "the same figures give the same chart");
    }

    #[test]
    fn bars_are_drawn_with_their_names_on_both_axes() {
        for log in [false, true] {
            check(
                &bars(log),
                &["ours", "the book, another machine", "WATCH", "5+5", "480", "hand-offs a second"],
            );
        }
    }

    #[test]
    fn lines_are_drawn_with_their_names_on_both_axes() {
        for log in [false, true] {
            check(&lines(log), &["Leasehold", "rslock", "waiting tasks", "10 000", "hand-offs a second"]);
        }
    }

    #[test]
    fn a_chart_without_figures_is_drawn() {
        for log in [false, true] {
            let mut empty = chart(Kind::Bars { groups: vec![], series: vec![] }, log);
            empty.limits.clear();
            let dir = tempfile::tempdir().expect("a directory");
            empty.draw(dir.path(), "empty").expect("it can be drawn");
        }
    }
}
