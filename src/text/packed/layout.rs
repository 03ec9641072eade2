//! Layout of texts as the rows of one pass: all prompts, then all completions, without padding.

use crate::text::kernels::text_gradients::{KEY_BLOCK_ENTRIES, ROW_ENTRIES};
use crate::text::kernels::text_heads::{COMPLETIONS_END, COMPLETIONS_START, SEGMENT_BOUNDS};
use crate::text::{CompletionIndex, PromptWithCompletions};
use std::ops::Range;

/// Number of tiles of rows per part of a block of keys.
const TILES_PER_PART: usize = 4;
/// Maximum number of parts of a block of keys.
pub(super) const MAX_PARTS: usize = 8;

/// The rows of some texts.
#[derive(Debug)]
pub(super) struct Layout {
    /// The token of each row.
    pub tokens: Vec<i32>,
    /// The segment of each row, then the bounds of each segment, as kernels read them.
    pub table: Vec<i32>,
    /// The rows of the prompts, then of the completions.
    segments: Vec<Range<usize>>,
    /// Index of the segment that is the first completion of each prompt.
    first_segments: Vec<usize>,
}

impl Layout {
    /// Lays out texts. The last token of a completion predicts nothing, and has no row.
    pub fn new(prompts: &[PromptWithCompletions]) -> Self {
        let (mut tokens, mut row_segments, mut segments) = (Vec::new(), Vec::new(), Vec::new());
        let mut add_segment = |own: &[u32]| {
            let start = tokens.len();
            tokens.extend(own.iter().map(|token| *token as i32));
            row_segments.resize(tokens.len(), segments.len() as i32);
            segments.push(start..tokens.len());
            segments.len() - 1
        };
        for text in prompts {
            add_segment(text.prompt);
        }
        let mut first_segments = Vec::new();
        let mut prompt_of_segment: Vec<Option<usize>> = vec![None; prompts.len()];
        let mut next = prompts.len();
        for (index, text) in prompts.iter().enumerate() {
            first_segments.push(next);
            for completion in &text.completions {
                next = add_segment(&completion[..completion.len() - 1]) + 1;
                prompt_of_segment.push(Some(index));
            }
        }
        let completions_of = |prompt: usize| {
            let own = &segments[first_segments[prompt]..][..prompts[prompt].completions.len()];
            own.first().zip(own.last()).map_or(0..0, |(first, last)| first.start..last.end)
        };
        let mut table = row_segments;
        for (index, (own, prompt)) in segments.iter().zip(&prompt_of_segment).enumerate() {
            let (prompt, completions) = match prompt {
                Some(prompt) => (segments[*prompt].clone(), 0..0),
                None => (0..0, completions_of(index)),
            };
            // In the order of the constants of `text_heads`.
            let bounds: [usize; SEGMENT_BOUNDS] =
                [own.start, own.end, prompt.start, prompt.end, completions.start, completions.end];
            table.extend(bounds.map(|bound| bound as i32));
        }
        Self { tokens, table, segments, first_segments }
    }

    /// Divides each segment into blocks of at most `size` rows. Returns begin and end of each block.
    pub fn divide_rows(&self, size: usize) -> Vec<i32> {
        let blocks = self.segments.iter().flat_map(|segment| {
            let block = move |begin: usize| [begin, (begin + size).min(segment.end)];
            segment.clone().step_by(size).flat_map(block)
        });
        blocks.map(|bound| bound as i32).collect()
    }

    /// Divides each segment into blocks of at most `size` keys. A block that more than `TILES_PER_PART` tiles of `tile`
    /// rows attend to is split into parts, one cube each.
    pub fn divide_keys(&self, size: usize, tile: usize) -> KeyParts {
        let mut divided = KeyParts::default();
        for (index, segment) in self.segments.iter().enumerate() {
            let completions =
                self.bound(index, COMPLETIONS_END) - self.bound(index, COMPLETIONS_START);
            for first in segment.clone().step_by(size) {
                let end = (first + size).min(segment.end);
                let tiles = (segment.end - first + completions).div_ceil(tile);
                let (parts, begin) =
                    (tiles.div_ceil(TILES_PER_PART).clamp(1, MAX_PARTS), divided.rows);
                for part in 0..parts {
                    let entries: [usize; KEY_BLOCK_ENTRIES] =
                        [first, end, part, parts, divided.rows];
                    divided.blocks.extend(entries.map(|entry| entry as i32));
                    divided.rows += end - first;
                }
                for row in 0..end - first {
                    let entries: [usize; ROW_ENTRIES] = [begin + row, end - first, parts];
                    divided.row_parts.extend(entries.map(|entry| entry as i32));
                }
            }
        }
        divided
    }

    /// A bound of a segment.
    fn bound(&self, segment: usize, which: usize) -> usize {
        self.table[self.tokens.len() + segment * SEGMENT_BOUNDS + which] as usize
    }

    /// The rows of a prompt.
    pub fn prompt_rows(&self, prompt: usize) -> Range<usize> {
        self.segments[prompt].clone()
    }

    /// The row that predicts token number `token_index` of a completion.
    pub fn prediction(&self, completion: CompletionIndex, token_index: usize) -> usize {
        let CompletionIndex { prompt, completion } = completion;
        match token_index {
            0 => self.segments[prompt].end - 1,
            _ => self.segments[self.first_segments[prompt] + completion].start + token_index - 1,
        }
    }
}

/// Blocks of keys in parts, as kernels read them.
#[derive(Debug, Default)]
pub(super) struct KeyParts {
    /// [`KEY_BLOCK_ENTRIES`] entries of each part of each block.
    pub blocks: Vec<i32>,
    /// [`ROW_ENTRIES`] entries of each row.
    pub row_parts: Vec<i32>,
    /// Rows of all parts.
    pub rows: usize,
}

/// Groups sources by destination, as [`scatter_kernel`] reads them: source `i` is added to `destinations[i]`, in
/// ascending order of `i`. Returns the number of destinations, `count`, and a table: the start of each destination's
/// sources and the end of the last, `[count + 1]`; the destinations, `[count]`; the sources.
///
/// [`scatter_kernel`]: crate::text::kernels::rows::scatter_kernel
pub(super) fn group_sources(destinations: &[i32]) -> (usize, Vec<i32>) {
    let mut order: Vec<usize> = (0..destinations.len()).collect();
    order.sort_by_key(|source| destinations[*source]);
    let (mut begins, mut found) = (vec![0], Vec::new());
    for sources in order.chunk_by(|a, b| destinations[*a] == destinations[*b]) {
        begins.push(begins[begins.len() - 1] + sources.len() as i32);
        found.push(destinations[sources[0]]);
    }
    let sources = order.iter().map(|source| *source as i32);
    (found.len(), begins.iter().chain(&found).copied().chain(sources).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_segment_and_its_bounds() {
        let texts = [
            PromptWithCompletions { prompt: &[5, 6], completions: vec![&[1, 2, 3], &[4]] },
            PromptWithCompletions { prompt: &[7], completions: vec![] },
            PromptWithCompletions { prompt: &[8, 9, 10], completions: vec![&[11, 12]] },
        ];
        let layout = Layout::new(&texts);
        assert_eq!(layout.tokens, [5, 6, 7, 8, 9, 10, 1, 2, 11]);
        let (row_segments, bounds) = layout.table.split_at(9);
        assert_eq!(row_segments, [0, 0, 1, 2, 2, 2, 3, 3, 5]);
        assert_eq!(bounds[..6], [0, 2, 0, 0, 6, 8]);
        assert_eq!(bounds[6..12], [2, 3, 0, 0, 0, 0]);
        assert_eq!(bounds[12..18], [3, 6, 0, 0, 8, 9]);
        assert_eq!(bounds[18..24], [6, 8, 0, 2, 0, 0]);
        assert_eq!(bounds[24..30], [8, 8, 0, 2, 0, 0]);
        let completion = |prompt| CompletionIndex { prompt, completion: 0 };
        assert_eq!(layout.prediction(completion(0), 0), 1);
        assert_eq!(layout.prediction(completion(0), 2), 7);
        assert_eq!(layout.prediction(completion(2), 1), 8);
        assert_eq!(layout.prompt_rows(2), 3..6);
        assert_eq!(layout.divide_rows(2), [0, 2, 2, 3, 3, 5, 5, 6, 6, 8, 8, 9]);
    }

    #[test]
    fn many_rows_that_see_a_key_are_shared_out() {
        let texts = [
            PromptWithCompletions { prompt: &[5, 6, 7], completions: vec![&[1; 10], &[2; 6]] },
            PromptWithCompletions { prompt: &[8], completions: vec![&[3; 200]] },
        ];
        let layout = Layout::new(&texts);
        let KeyParts { blocks, row_parts, rows } = layout.divide_keys(2, 1);
        let (mut found, mut of_prompts) = (vec![false; rows], Vec::new());
        for block in blocks.chunks_exact(KEY_BLOCK_ENTRIES) {
            let [first, end, part, parts, first_index] = *block else { panic!("five numbers") };
            for row in first..end {
                let index = first_index + row - first;
                let [begin, step, of_row] = row_parts[row as usize * ROW_ENTRIES..][..3] else {
                    panic!("three numbers")
                };
                assert_eq!((index, parts), (begin + part * step, of_row));
                assert!(!std::mem::replace(&mut found[index as usize], true));
            }
            if part == 0 {
                of_prompts.push(parts);
            }
        }
        assert!(found.iter().all(|found| *found));
        // Two blocks of the first prompt, which 14 rows follow, and one of the second, which many do.
        assert_eq!(of_prompts[..3], [5, 4, MAX_PARTS as i32]);
    }

    #[test]
    fn sources_are_grouped_by_destination() {
        let (count, table) = group_sources(&[7, 2, 7, 0]);
        assert_eq!((count, &table[..]), (3, &[0, 1, 2, 4, 0, 2, 7, 3, 1, 0, 2][..]));
    }
}
