//! Server-sent events out of pieces of bytes as they come, however they are cut.
//!
//! Must not know what is in them. Holds at most [`MOST_BYTES`] of an event that is not whole yet;
//! whole ones are handed on where they lie.

/// The longest event: a token's own is some 300 bytes, the last with log probabilities a few
/// hundred KB.
const MOST_BYTES: usize = 4 << 20;

/// As much of a line that is none of a stream's as an example shows.
const MOST_STRAY_BYTES: usize = 1 << 10;
/// The fields that the HTML standard knows (9.2.6).
const FIELDS: [&[u8]; 4] = [b"data", b"event", b"id", b"retry"];

/// What came is no stream of events that can be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {MOST_BYTES} bytes")]
pub(super) struct TooLong;

/// The state between two pieces.
#[derive(Debug, Default)]
pub(super) struct Parser {
    /// A line that has not ended.
    line: Vec<u8>,
    /// The data of an event that has not ended; lines are joined by line feeds.
    data: Vec<u8>,
    has_data: bool,
    /// The first line that is none of a stream's.
    stray: Option<Vec<u8>>,
    /// Whether the last byte was a CR: a LF after it belongs to the same end of a line.
    is_after_cr: bool,
}

impl Parser {
    /// Takes a piece in, and calls `on_event` with the data of each event that it completes.
    ///
    /// Lines end with LF, CR LF or CR, as the HTML standard has it (9.2.5). Fields other than `data`
    /// are skipped.
    pub(super) fn push<E: From<TooLong>>(
        &mut self,
        mut piece: &[u8],
        mut on_event: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        // The one data line of an event, where it lies in the piece: the usual case copies nothing.
        let mut whole: Option<&[u8]> = None;
        if !piece.is_empty() && std::mem::take(&mut self.is_after_cr) {
            piece = piece.strip_prefix(b"\n").unwrap_or(piece);
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', piece) {
            let line = &piece[..end];
            piece = match &piece[end..] {
                [b'\r', b'\n', rest @ ..] => rest,
                [b'\r'] => {
                    self.is_after_cr = true;
                    &[]
                }
                [_, rest @ ..] => rest,
                [] => &[],
            };
            if !self.line.is_empty() {
                self.room(line.len())?;
                self.line.extend_from_slice(line);
                let line = std::mem::take(&mut self.line);
                self.take_line(&line, &mut on_event)?;
                continue;
            }
            if line.is_empty() {
                match whole.take() {
                    Some(data) => on_event(data)?,
                    None => self.end_event(&mut on_event)?,
                }
            } else if let Some(data) = data_of(line) {
                if whole.is_none() && !self.has_data {
                    whole = Some(data);
                } else {
                    if let Some(first) = whole.take() {
                        self.add_data(first)?;
                    }
                    self.add_data(data)?;
                }
            } else {
                self.skip(line);
            }
        }
        if let Some(data) = whole {
            self.add_data(data)?;
        }
        self.room(piece.len())?;
        self.line.extend_from_slice(piece);
        Ok(())
    }

    fn take_line<E: From<TooLong>>(
        &mut self,
        line: &[u8],
        on_event: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if line.is_empty() {
            self.end_event(on_event)?;
        } else if let Some(data) = data_of(line) {
            self.add_data(data)?;
        } else {
            self.skip(line);
        }
        Ok(())
    }

    /// Passes over a comment or another field than `data`, and keeps the first line that is neither.
    fn skip(&mut self, line: &[u8]) {
        if self.stray.is_none() && !is_field(line) {
            self.stray = Some(line[..line.len().min(MOST_STRAY_BYTES)].to_vec());
        }
    }

    /// The first line, whole or not, that no stream of events has: what came is something else.
    pub(super) fn stray(&self) -> Option<&[u8]> {
        let last = Some(self.line.as_slice()).filter(|line| !line.is_empty() && !is_field(line));
        self.stray.as_deref().or(last)
    }

    fn end_event<E>(&mut self, on_event: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        if std::mem::take(&mut self.has_data) {
            let handed = on_event(&self.data);
            self.data.clear();
            handed?;
        }
        Ok(())
    }

    fn add_data(&mut self, data: &[u8]) -> Result<(), TooLong> {
        self.room(data.len())?;
        if std::mem::replace(&mut self.has_data, true) {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(data);
        Ok(())
    }

    fn room(&self, more: usize) -> Result<(), TooLong> {
        if self.line.len() + self.data.len() + more > MOST_BYTES { Err(TooLong) } else { Ok(()) }
    }
}

/// Whether it is, or begins, a comment or a field of the standard's; a byte order mark may be in front.
fn is_field(line: &[u8]) -> bool {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
    let is_whole = name.len() < line.len();
    name.is_empty()
        || FIELDS
            .iter()
            .any(|field| if is_whole { *field == name } else { field.starts_with(name) })
}

fn data_of(line: &[u8]) -> Option<&[u8]> {
    let data = line.strip_prefix(b"data:")?;
    Some(data.strip_prefix(b" ").unwrap_or(data))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<String>, TooLong> {
        let mut parser = Parser::default();
        let mut events = Vec::new();
        for piece in pieces {
            parser.push(piece, |data| {
                events.push(String::from_utf8_lossy(data).into_owned());
                Ok::<(), TooLong>(())
            })?;
        }
        Ok(events)
    }

    #[test]
    fn fields_other_than_data_are_skipped_and_lines_are_joined() {
        let text = b": hello\r\nevent: token\nid: 7\ndata: one\r\n\r\ndata:two\ndata: lines\n\n\n\
                     data\n\ndata: \n\ndata: not ended";
        assert_eq!(events([text.as_slice()]).unwrap(), ["one", "two\nlines", ""]);
    }

    #[test]
    fn lines_end_as_the_standard_has_it() {
        for end in ["\n", "\r\n", "\r"] {
            let text = format!("data: one{end}{end}data: two{end}data: lines{end}{end}");
            assert_eq!(events([text.as_bytes()]).unwrap(), ["one", "two\nlines"], "{end:?}");
        }
        // A CR LF that is cut in two is one end, not an empty line.
        let pieces: [&[u8]; 3] = [b"data: one\r", b"", b"\ndata: more\r\n\r\n"];
        assert_eq!(events(pieces).unwrap(), ["one\nmore"]);
    }

    #[test]
    fn an_event_without_end_is_held_only_so_long() {
        let piece = vec![b'x'; 1 << 20];
        assert_eq!(events(std::iter::repeat_n(piece.as_slice(), 5)), Err(TooLong));
        let lines = b"data: 0123456789\n".repeat(400_000);
        assert_eq!(events([lines.as_slice()]), Err(TooLong));
    }

    #[test]
    fn what_no_stream_has_is_told_from_its_fields() {
        for (text, stray) in [
            ("", None),
            (": ping\nevent: x\nid: 1\nretry: 5\ndata: {\n\nda", None),
            ("data\n\ndata: x", None),
            ("{\"error\": \"no\"}", Some("{\"error\": \"no\"}")),
            ("data: x\n\n<html>\nmore\n", Some("<html>")),
            ("datum: x\n", Some("datum: x")),
        ] {
            for cut in [0, 1, text.len() / 2] {
                let mut parser = Parser::default();
                let (one, other) = text.as_bytes().split_at(cut.min(text.len()));
                for piece in [one, other] {
                    parser.push(piece, |_| Ok::<(), TooLong>(())).unwrap();
                }
                assert_eq!(parser.stray(), stray.map(str::as_bytes), "{text:?} cut at {cut}");
            }
        }
    }

    proptest! {
        #[test]
        fn how_the_bytes_are_cut_changes_nothing(
            lines in prop::collection::vec("(data: ?[a-c]{0,5}|event: x|: c|)", 0..30),
            ends in prop::collection::vec("\n|\r\n|\r", 30),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut text = String::new();
            for (line, end) in lines.iter().zip(ends) {
                text.push_str(line);
                text.push_str(&end);
            }
            let mut cuts: Vec<usize> =
                cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]);
            prop_assert_eq!(events(pieces), events([text.as_bytes()]));
        }
    }
}
