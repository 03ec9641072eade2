//! Annotated time series from CSV: numeric columns over time with a sparse label column.

use super::error::{io_error, malformed_error};
use super::shards::MAX_OBSERVATION;
use super::time::Time;
use super::{DatasetError, EpisodeStatus, Standardization, StepColumns};
use crate::disk::{csv, input};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

/// Options for reading a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableOptions<'a> {
    /// Name of the label column, whose cells may be empty.
    pub label: &'a str,
    /// Name of the time column, if any. It is not a feature and must not decrease.
    pub time: Option<&'a str>,
    /// strftime format of the time column, for instance `%d.%m.%Y`; without one, numbers or ISO 8601.
    pub time_format: Option<&'a str>,
    /// The number of rows, the last one labelled, that form one example.
    pub window: usize,
    /// Fraction of the rows to hold out, taken from the end.
    pub validation: f64,
}

/// A table, split by time and standardized.
#[derive(Clone, Debug, PartialEq)]
pub struct AnnotatedTable {
    /// Names of the feature columns.
    pub features: Vec<String>,
    /// Numbers, from 1, of the columns without a name, which are left out; spreadsheets and pandas write row numbers
    /// there.
    pub unnamed_columns: Vec<usize>,
    /// Standardization of each feature, computed from the training rows only.
    pub scales: Vec<Standardization>,
    /// Distinct labels; the action of a row is the index of its label.
    pub labels: Vec<String>,
    /// Training rows. Rows without a label have weight 0.
    pub training: StepColumns,
    /// Held-out rows, which follow the training rows.
    pub held_out: StepColumns,
}

/// Parsed rows of a file.
#[derive(Clone)]
struct TableRows {
    features: Vec<String>,
    /// Numbers, from 1, of the columns without a name.
    unnamed_columns: Vec<usize>,
    /// The number of the line on which each row begins.
    lines: Vec<usize>,
    /// `[rows, features]`.
    values: Vec<f64>,
    /// `[rows]`.
    labels: Vec<Option<String>>,
}

impl AnnotatedTable {
    /// Reads a CSV file with a header row.
    ///
    /// # Errors
    /// If the file cannot be read, a column is missing or there twice, a value is not a finite number, a time cannot be
    /// parsed or time decreases, there are fewer than two labels, or one of the two parts is shorter than a window
    /// or has no labels.
    pub fn read(path: &Path, options: &TableOptions) -> Result<Self, DatasetError> {
        let rows = TableRows::read(path, options)?;
        Self::from_rows(rows, options).map_err(|reason| malformed_error(path, reason))
    }

    /// Divides rows into those learnt from and those held out, standardized alike.
    ///
    /// # Errors
    /// The reason why they do not suffice.
    fn from_rows(rows: TableRows, options: &TableOptions) -> Result<Self, String> {
        let TableOptions { window, validation, .. } = *options;
        let count = rows.labels.len();
        let held_out = ((count as f64 * validation).round() as usize).min(count);
        let parts = [0..count - held_out, count - held_out..count];
        for (part, what) in parts.iter().zip(["are learnt from", "are held out"]) {
            if part.len() < window {
                let advice = if window > 1 { "choose a shorter one" } else { "it needs more rows" };
                return Err(format!(
                    "{} of its {count} rows {what}, but a window takes {window}: {advice}",
                    part.len()
                ));
            }
            if rows.labels[part.clone()].iter().all(Option::is_none) {
                return Err(format!("none of the {} rows that {what} has a label", part.len()));
            }
        }
        let labels = rows.distinct_labels(&parts[0]);
        let scales = rows.compute_scales(&parts[0]);
        if labels.len() < 2 {
            return Err(format!("all rows that are learnt from have the label `{}`", labels[0]));
        }
        rows.check_distances(&scales)?;
        let training_labels: HashSet<&String> = labels.iter().collect();
        if let Some(label) =
            rows.distinct_labels(&parts[1]).iter().find(|label| !training_labels.contains(label))
        {
            return Err(format!(
                "the label `{label}` is in the rows that are held out, but not in those that are \
                 learnt from"
            ));
        }
        let [training, held_out] = parts.map(|part| rows.standardize(part, &scales, &labels));
        Ok(Self {
            features: rows.features,
            unnamed_columns: rows.unnamed_columns,
            scales,
            labels,
            training,
            held_out,
        })
    }
}

impl TableRows {
    /// Reads the rows of a CSV file, whose order in time is checked along the way.
    fn read(path: &Path, options: &TableOptions) -> Result<Self, DatasetError> {
        let bad = |reason: String| malformed_error(path, reason);
        let mut lines = csv::rows(input::open(path).map_err(io_error("read", path))?);
        let (_, header) = lines.next().ok_or_else(|| bad("it is empty".to_string()))?;
        let header =
            Header::parse(header.map_err(io_error("read", path))?, options).map_err(bad)?;
        let mut rows = Self {
            features: header.features.iter().map(|i| header.names[*i].clone()).collect(),
            unnamed_columns: header.unnamed.iter().map(|i| i + 1).collect(),
            lines: Vec::new(),
            values: Vec::new(),
            labels: Vec::new(),
        };
        let mut last = None;
        for (line, cells) in lines {
            let cells = clean_cells(cells.map_err(io_error("read", path))?);
            let added = rows.add(line, &cells, &header);
            let time = added.and_then(|()| header.parse_time(&cells, last, options.time_format));
            last = time.map_err(|reason| bad(format!("line {line} {reason}")))?;
        }
        if rows.labels.is_empty() { Err(bad("it has no rows".to_string())) } else { Ok(rows) }
    }

    /// Adds the row that begins on the line with number `line`.
    fn add(&mut self, line: usize, cells: &[String], header: &Header) -> Result<(), String> {
        if cells.len() != header.names.len() {
            let (found, expected) = (cells.len(), header.names.len());
            return Err(format!("has {found} values, but there are {expected} columns"));
        }
        for i in &header.features {
            let (cell, name) = (&cells[*i], &header.names[*i]);
            let x = cell.parse::<f64>().ok().filter(|x| (*x as f32).is_finite());
            self.values.push(x.ok_or_else(|| {
                if cell.is_empty() {
                    format!("has an empty cell in the column {name}; fill it, or leave the row out")
                } else {
                    format!("has `{cell}` in the column {name}, which is not a finite number")
                }
            })?);
        }
        self.lines.push(line);
        self.labels.push(Some(cells[header.label].clone()).filter(|label| !label.is_empty()));
        Ok(())
    }

    /// Distinct labels of some rows, sorted numerically if all are numbers, else alphabetically.
    fn distinct_labels(&self, rows: &Range<usize>) -> Vec<String> {
        let mut names: Vec<String> = self.labels[rows.clone()].iter().flatten().cloned().collect();
        names.sort_unstable();
        names.dedup();
        if names.iter().all(|name| name.parse::<f64>().is_ok()) {
            let value = |name: &String| name.parse::<f64>().unwrap_or(0.0);
            names.sort_by(|a, b| value(a).total_cmp(&value(b)));
        }
        names
    }

    /// Computes mean and standard deviation of each column over some rows.
    fn compute_scales(&self, rows: &Range<usize>) -> Vec<Standardization> {
        let width = self.features.len();
        let values = &self.values[rows.start * width..rows.end * width];
        let n = rows.len() as f64;
        let column = |i: usize| values.iter().skip(i).step_by(width);
        let scale = |i: usize| {
            // Rounded sums would make a constant column vary in its last digit.
            if column(i).all(|x| *x == values[i]) {
                return Standardization { mean: values[i], std: 1.0 };
            }
            let mean = column(i).sum::<f64>() / n;
            let variance = column(i).map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            Standardization { mean, std: if variance > 0.0 { variance.sqrt() } else { 1.0 } }
        };
        (0..width).map(scale).collect()
    }

    /// Refuses values beyond those of observations once they are standardized.
    fn check_distances(&self, scales: &[Standardization]) -> Result<(), String> {
        let width = self.features.len();
        let is_far = |(x, scale): (&f64, &Standardization)| {
            let x = scale.apply(*x);
            x.is_nan() || x.abs() > MAX_OBSERVATION
        };
        let Some(index) = self.values.iter().zip(scales.iter().cycle()).position(is_far) else {
            return Ok(());
        };
        let (line, x) = (self.lines[index / width], self.values[index]);
        let (name, Standardization { mean, std }) =
            (&self.features[index % width], scales[index % width]);
        Err(format!(
            "line {line} has {x} in the column {name}: too far from what is learnt from, of mean {mean} and standard \
             deviation {std}"
        ))
    }

    /// Standardizes some rows and makes them an episode.
    fn standardize(
        &self,
        rows: Range<usize>,
        scales: &[Standardization],
        labels: &[String],
    ) -> StepColumns {
        let width = self.features.len();
        let values = &self.values[rows.start * width..rows.end * width];
        let obs = values.iter().zip(scales.iter().cycle());
        let indices: HashMap<&String, usize> = labels.iter().zip(0..).collect();
        let action = |label: &Option<String>| indices.get(label.as_ref()?).copied();
        let actions: Vec<Option<usize>> = self.labels[rows.clone()].iter().map(action).collect();
        let last = rows.len() - 1;
        StepColumns {
            num_features: width,
            obs: obs.map(|(x, scale)| scale.apply(*x)).collect(),
            actions: actions.iter().map(|label| label.unwrap_or(0) as i32).collect(),
            weights: actions.iter().map(|label| f32::from(label.is_some())).collect(),
            statuses: (0..rows.len()).map(|row| EpisodeStatus::new(false, row == last)).collect(),
        }
    }
}

impl Standardization {
    fn apply(self, x: f64) -> f32 {
        ((x - self.mean) / self.std) as f32
    }
}

/// The columns of a file.
struct Header {
    names: Vec<String>,
    label: usize,
    time: Option<usize>,
    features: Vec<usize>,
    unnamed: Vec<usize>,
}

impl Header {
    fn parse(cells: Vec<String>, options: &TableOptions) -> Result<Self, String> {
        if cells.iter().any(|cell| cell.contains('\r')) {
            return Err("its lines end with CR alone; they must end with LF or CR LF".to_string());
        }
        let names = clean_cells(cells);
        let find = |name: &str| {
            names.iter().position(|column| column == name).ok_or_else(|| {
                let has_other = |mark| names.len() == 1 && names[0].contains(mark);
                let advice = if [';', '\t'].into_iter().any(has_other) {
                    "; columns must be separated by commas"
                } else {
                    ""
                };
                format!("it has no column `{name}`; its columns are {}{advice}", names.join(", "))
            })
        };
        let label = find(options.label)?;
        let time = options.time.map(find).transpose()?;
        let (unnamed, named): (Vec<usize>, Vec<usize>) =
            (0..names.len()).partition(|i| is_unnamed(&names[*i]));
        let mut distinct = HashSet::new();
        if let Some(twice) = named.iter().find(|i| !distinct.insert(&names[**i])) {
            return Err(format!("it has two columns `{}`; rename one", names[*twice]));
        }
        let features: Vec<usize> =
            named.into_iter().filter(|i| *i != label && Some(*i) != time).collect();
        if features.is_empty() {
            return Err("it has no column of numbers besides the labels".to_string());
        }
        Ok(Self { names, label, time, features, unnamed })
    }

    /// Parses the time of a row, if there is a column of times. It must not be before the `last` one.
    fn parse_time(
        &self,
        cells: &[String],
        last: Option<Time>,
        format: Option<&str>,
    ) -> Result<Option<Time>, String> {
        let Some(column) = self.time else { return Ok(None) };
        let cell = &cells[column];
        let now = Time::parse(cell, format).ok_or_else(|| {
            let expected = match format {
                Some(format) => format!("no time of the format {format}"),
                None => {
                    "no number and no time of ISO 8601 (--time-format gives another format)".into()
                }
            };
            format!("has `{cell}` in the column {}: {expected}", self.names[column])
        })?;
        match last.map_or(Some(false), |last| now.is_before(last)) {
            Some(false) => Ok(Some(now)),
            Some(true) => Err("is of a time before that of the line above".to_string()),
            None => {
                let reason = "has a number and the line above a date, or the reverse, as its time";
                Err(reason.to_string())
            }
        }
    }
}

/// Whether a column has no name, or the one that pandas gives such a column.
fn is_unnamed(name: &str) -> bool {
    let number = name.strip_prefix("Unnamed: ").unwrap_or(name);
    name.is_empty() || (number != name && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The cells of a row without the white space around them, each on one line.
fn clean_cells(cells: Vec<String>) -> Vec<String> {
    cells.iter().map(|cell| cell.trim().replace(['\r', '\n'], " ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_column_does_not_vary() {
        // Ten times 0.1 add up to less than 1.
        let rows = TableRows {
            features: vec!["still".to_string()],
            unnamed_columns: Vec::new(),
            lines: (2..12).collect(),
            values: vec![0.1; 10],
            labels: vec![None; 10],
        };
        assert_eq!(rows.compute_scales(&(0..10)), [Standardization { mean: 0.1, std: 1.0 }]);
    }

    #[test]
    fn scales_come_from_training_rows_only() {
        let rows = TableRows {
            features: vec!["x".to_string(), "still".to_string()],
            unnamed_columns: Vec::new(),
            lines: (2..7).collect(),
            values: [1.0, 3.0, 1.0, 3.0, 1000.0].iter().flat_map(|x| [*x, 7.0]).collect(),
            labels: ["up", "", "down", "", "up"]
                .map(|l| Some(l.to_string()).filter(|l| !l.is_empty()))
                .to_vec(),
        };
        let options =
            TableOptions { label: "", time: None, time_format: None, window: 1, validation: 0.2 };
        // Each is a number by itself.
        let mut far = rows.clone();
        far.values.iter_mut().step_by(2).for_each(|x| *x *= 1e-30);
        far.values[8] = 1e30;
        let error = AnnotatedTable::from_rows(far, &options).unwrap_err();
        let said = "line 6 has 1000000000000000000000000000000 in the column x";
        assert!(error.starts_with(said), "{error}");
        let table = AnnotatedTable::from_rows(rows, &options).unwrap();
        assert_eq!(table.scales[0], Standardization { mean: 2.0, std: 1.0 });
        assert_eq!(table.scales[1], Standardization { mean: 7.0, std: 1.0 });
        assert_eq!(table.labels, ["down", "up"]);
        assert_eq!(table.training.obs, [-1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0]);
        assert_eq!(table.training.actions, [1, 0, 0, 0]);
        assert_eq!(table.training.weights, [1.0, 0.0, 1.0, 0.0]);
        assert_eq!(table.held_out.obs, [998.0, 0.0]);
        assert_eq!(table.held_out.actions, [1]);
        assert_eq!(table.held_out.statuses, [EpisodeStatus::Truncated]);
    }
}
