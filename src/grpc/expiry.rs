//! When a certificate runs out, read from its DER (RFC 5280, 4.1).
//!
//! Must not judge a certificate: TLS does. What cannot be read is not known.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Until when a certificate is valid, in seconds since the Unix epoch.
pub(super) fn not_after(certificate: &[u8]) -> Option<i64> {
    let mut certificate = Der(Der(certificate).next_of(SEQUENCE)?);
    let mut signed = Der(certificate.next_of(SEQUENCE)?);
    // The version is left out where it is the first.
    let (first, _) = signed.next()?;
    let n_before_validity = if first == VERSION { 3 } else { 2 };
    for _ in 0..n_before_validity {
        signed.next()?;
    }
    let mut validity = Der(signed.next_of(SEQUENCE)?);
    validity.next()?;
    let (kind, text) = validity.next()?;
    let text = std::str::from_utf8(text).ok()?;
    let text = match kind {
        // Years from 50 on are of the last century.
        UTC_TIME => format!("{}{text}", if text < "50" { "20" } else { "19" }),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let end = DateTime::strptime("%Y%m%d%H%M%SZ", text).ok()?;
    Some(end.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
}

/// What is left of a sequence of values.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next value, with its tag.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (tag, rest) = self.0.split_first()?;
        let (first, rest) = rest.split_first()?;
        let (length, rest) = if *first < 0x80 {
            (usize::from(*first), rest)
        } else {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let longer =
                |length: usize, byte: &u8| length.checked_mul(256)?.checked_add(usize::from(*byte));
            (bytes.iter().try_fold(0, longer)?, rest)
        };
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((*tag, value))
    }

    /// The next value, which has to be of this kind.
    fn next_of(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    /// What `openssl x509 -enddate` says of each, a year beyond 2049 and one before: the two forms in
    /// which a certificate has its end.
    #[test]
    fn the_end_of_a_certificate_is_what_openssl_says() {
        for (file, end) in [
            ("first-server.pem", "2126-11-05T19:58:29Z"),
            ("second-server.pem", "2046-11-25T18:47:41Z"),
        ] {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/grpc/tls");
            let certificate = CertificateDer::from_pem_file(format!("{folder}/{file}")).unwrap();
            let end: jiff::Timestamp = end.parse().unwrap();
            assert_eq!(not_after(&certificate), Some(end.as_second()), "{file}");
        }
    }

    #[test]
    fn whatever_is_cut_off_is_not_known() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/grpc/tls/first-server.pem");
        let certificate = CertificateDer::from_pem_file(path).unwrap();
        for length in 0..certificate.len() {
            assert_eq!(not_after(&certificate[..length]), None, "{length}");
        }
        assert_eq!(not_after(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
