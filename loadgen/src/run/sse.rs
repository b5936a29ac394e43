//! Server-sent events out of pieces of bytes as they come, however they are cut.
//!
//! Must not know what is in them. Holds at most [`MOST_BYTES`] of an event that is not whole yet;
//! whole ones are handed on where they lie.

/// The longest event: a token's own is some 300 bytes, the last with log probabilities a few
/// hundred KB.
const MOST_BYTES: usize = 4 << 20;

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
        }
        Ok(())
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
