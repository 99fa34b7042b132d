//! The table, the same as comma-separated values, and the plot.

use std::fs;
use std::path::Path;

use anyhow::{Context, anyhow};
use plotters::prelude::*;

/// What was measured in one of the two placements.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub seconds: f64,
    /// In 10^9 bytes a second, as `busbw` is.
    pub algbw: f64,
    pub busbw: f64,
    /// Elements of all ranks; `None` where nothing was checked.
    pub wrong: Option<u64>,
}

/// A line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    pub bytes: usize,
    pub count: usize,
    pub datatype: &'static str,
    pub redop: &'static str,
    pub root: i32,
    /// Out of place, then in place.
    pub measured: [Measured; 2],
}

pub fn table_header() -> String {
    let columns = ["size", "count", "type", "redop", "root"];
    let units = ["(B)", "(elements)", "", "", ""];
    let line = |own: [&str; 5], each: [&str; 4]| {
        let [size, count, datatype, redop, root] = own;
        let mut line = format!("#{size:>11} {count:>12} {datatype:>10} {redop:>5} {root:>4}");
        for _ in 0..2 {
            let [time, algbw, busbw, wrong] = each;
            line += &format!(" {time:>9} {algbw:>7} {busbw:>7} {wrong:>6}");
        }
        line.trim_end().to_owned()
    };
    format!(
        "#{:>68}{:>33}\n{}\n{}",
        "out of place",
        "in place",
        line(columns, ["time", "algbw", "busbw", "#wrong"]),
        line(units, ["(us)", "(GB/s)", "(GB/s)", ""])
    )
}

pub fn csv_header() -> String {
    let mut header = "size,count,type,redop,root".to_owned();
    for placement in ["out_of_place", "in_place"] {
        for column in ["us", "algbw", "busbw", "wrong"] {
            header += &format!(",{placement}_{column}");
        }
    }
    header
}

impl Row {
    pub fn table(&self) -> String {
        let mut line = format!(
            "{:>12} {:>12} {:>10} {:>5} {:>4}",
            self.bytes, self.count, self.datatype, self.redop, self.root
        );
        for measured in self.measured {
            let us = measured.seconds * 1e6;
            // Five digits at least, as long as there is room.
            let digits = if us >= 1e4 {
                0
            } else if us >= 100.0 {
                1
            } else {
                2
            };
            let wrong = measured.wrong.map_or("N/A".to_owned(), |n| n.to_string());
            line += &format!(
                " {us:>9.digits$} {:>7.2} {:>7.2} {wrong:>6}",
                measured.algbw, measured.busbw
            );
        }
        line
    }

    pub fn csv(&self) -> String {
        let mut line = format!(
            "{},{},{},{},{}",
            self.bytes, self.count, self.datatype, self.redop, self.root
        );
        for measured in self.measured {
            let wrong = measured.wrong.map_or(String::new(), |n| n.to_string());
            line += &format!(
                ",{:.3},{:.9},{:.9},{wrong}",
                measured.seconds * 1e6,
                measured.algbw,
                measured.busbw
            );
        }
        line
    }
}

/// A size as people write it.
pub fn size(bytes: f64) -> String {
    for (unit, power) in [("G", 30), ("M", 20), ("K", 10)] {
        let unit_bytes = f64::from(1 << power);
        if bytes >= unit_bytes {
            return format!("{}{unit}", (bytes / unit_bytes * 100.0).round() / 100.0);
        }
    }
    format!("{}", bytes.round())
}

/// Draws bus bandwidth over size, and leaves it in `file`.
pub fn plot(rows: &[Row], title: &str, file: &Path) -> anyhow::Result<()> {
    let mut svg = String::new();
    draw(rows, title, &mut svg).map_err(|error| anyhow!("the plot: {error}"))?;
    fs::write(file, svg).with_context(|| file.display().to_string())
}

fn draw(rows: &[Row], title: &str, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    // A logarithm has no place for nothing.
    let rows: Vec<&Row> = rows.iter().filter(|row| row.bytes > 0).collect();
    let sizes = rows.iter().map(|row| row.bytes as f64);
    let smallest = sizes.clone().fold(f64::INFINITY, f64::min).min(1e15);
    let largest = sizes.fold(smallest * 2.0, f64::max);
    let values = rows.iter().flat_map(|row| row.measured.map(|m| m.busbw));
    let highest = values.fold(1e-3, f64::max) * 1.05;

    let area = SVGBackend::with_string(svg, (840, 460)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d((smallest..largest).log_scale().base(2.0), 0.0..highest)?;
    chart
        .configure_mesh()
        .x_labels(15)
        .x_desc("size (bytes)")
        .y_desc("busbw (GB/s)")
        .x_label_formatter(&|bytes| size(*bytes))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let lines = [
        ("out of place", RGBColor(0, 90, 181)),
        ("in place", RGBColor(220, 50, 32)),
    ];
    for (index, (name, color)) in lines.into_iter().enumerate() {
        let points = rows
            .iter()
            .map(|row| (row.bytes as f64, row.measured[index].busbw));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(2))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}
