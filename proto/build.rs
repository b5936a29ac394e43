//! Compiles KEDA's proto with protox, so that a build needs no protoc, and writes the descriptor
//! set that gRPC reflection serves; and the proto by which replicas talk, which is nobody else's.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/externalscaler.proto");
    println!("cargo:rerun-if-changed=proto/pair.proto");
    println!("cargo:rerun-if-changed=proto/build.rs");
    let descriptors = protox::compile(["externalscaler.proto"], ["proto"])?;
    let out_dir = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    std::fs::write(
        out_dir.join("externalscaler.bin"),
        prost::Message::encode_to_vec(&descriptors),
    )?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    let pair = protox::compile(["pair.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(pair)?;
    Ok(())
}
