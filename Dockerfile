# A small image of the scaler: the binary, glibc and CA certificates, no shell, no root.
#
#   docker build -t ghostscaler:0.1.0 .
#
# Reproducible as far as it goes: images by digest, dependencies by Cargo.lock, no paths and no times
# in the binary. Take newer images by their digest, never by a tag.
FROM docker.io/library/rust:1.95.0-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082 AS build
WORKDIR /src
# For jemalloc's own build.
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
COPY .cargo .cargo
COPY Cargo.toml Cargo.lock ./
COPY proto proto
COPY src src
COPY loadgen loadgen
COPY tests tests
ENV RUSTFLAGS="--remap-path-prefix=/src=. --remap-path-prefix=/usr/local/cargo=cargo" \
    SOURCE_DATE_EPOCH=0
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release --bin ghostscaler && cp target/release/ghostscaler /ghostscaler

# Debian 13 under a binary of Debian 12: its glibc is newer, which is the safe direction.
FROM gcr.io/distroless/cc-debian13:nonroot@sha256:e792ab3d241a468a4fd7519ddbbebe66b49b5f365771716ea688ad40b6c6f1c2
COPY --from=build /ghostscaler /ghostscaler
USER 65532:65532
EXPOSE 9090 8080 9091
RUN ["/ghostscaler", "--version"]
ENTRYPOINT ["/ghostscaler"]
CMD ["serve"]
