//! none
fn main() {}
