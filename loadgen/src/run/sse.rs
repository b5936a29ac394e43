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
}

impl Parser {
    /// Takes a piece in, and calls `on_event` with the data of each event that it completes.
    ///
    /// Lines end with LF or CR LF. Fields other than `data` are skipped.
    pub(super) fn push<E: From<TooLong>>(
        &mut self,
        mut piece: &[u8],
        mut on_event: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        // The one data line of an event, where it lies in the piece: the usual case copies nothing.
        let mut whole: Option<&[u8]> = None;
        while let Some(end) = memchr::memchr(b'\n', piece) {
            let (line, rest) = (&piece[..end], &piece[end + 1..]);
            piece = rest;
            if !self.line.is_empty() {
                self.room(line.len())?;
                self.line.extend_from_slice(line);
                let line = std::mem::take(&mut self.line);
                self.take_line(without_cr(&line), &mut on_event)?;
                continue;
            }
            let line = without_cr(line);
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

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
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
            ends in prop::collection::vec(any::<bool>(), 30),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut text = String::new();
            for (line, crlf) in lines.iter().zip(ends) {
                text.push_str(line);
                text.push_str(if crlf { "\r\n" } else { "\n" });
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
