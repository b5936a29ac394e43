//! Certificates and kubeconfigs of a cluster that lives for some minutes.
//!
//! Must not be taken for an example: one authority signs everything.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Who gets a certificate: file, subject, names.
const CERTIFICATES: [(&str, &str, &str); 4] = [
    ("apiserver", "/CN=kube-apiserver", "DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1"),
    ("admin", "/O=system:masters/CN=admin", "DNS:admin"),
    ("front-proxy", "/CN=front-proxy", "DNS:front-proxy"),
    (
        "keda",
        "/CN=keda",
        "DNS:localhost,DNS:keda-operator.keda.svc,DNS:keda-operator.keda.svc.cluster.local,\
         DNS:keda-metrics-apiserver.keda.svc,IP:127.0.0.1",
    ),
];

/// Makes all of it below a directory. An error is what is missing on this machine.
pub(super) fn make(dir: &Path, api_port: u16) -> Result<(), String> {
    openssl(dir, &["-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=cluster-test"])?;
    for (name, subject, names) in CERTIFICATES {
        let (key, crt) = (format!("{name}.key"), format!("{name}.crt"));
        let names = format!("subjectAltName={names}");
        let usage = "extendedKeyUsage=serverAuth,clientAuth";
        let no_authority = "basicConstraints=critical,CA:FALSE";
        let mut signed = vec!["-CA", "ca.crt", "-CAkey", "ca.key"];
        for extension in [&names, usage, no_authority] {
            signed.extend(["-addext", extension]);
        }
        let files = ["-keyout", &key, "-out", &crt, "-subj", subject];
        openssl(dir, &[&files[..], &signed].concat())?;
    }
    // What signs the tokens of service accounts is a key pair alone.
    openssl(dir, &["-keyout", "sa.key", "-out", "sa.crt", "-subj", "/CN=sa"])?;
    let keda = dir.join("keda-certificates");
    fs::create_dir(&keda).unwrap();
    for (from, to) in [("keda.crt", "tls.crt"), ("keda.key", "tls.key"), ("ca.crt", "ca.crt")] {
        fs::copy(dir.join(from), keda.join(to)).unwrap();
    }
    let at = |file: &str| dir.join(file).display().to_string();
    let user =
        format!("{{client-certificate: {}, client-key: {}}}", at("admin.crt"), at("admin.key"));
    fs::write(dir.join("admin.kubeconfig"), kubeconfig(dir, api_port, &user)).unwrap();
    Ok(())
}

/// Makes an authority with this file name.
pub(crate) fn authority(dir: &Path, name: &str) {
    let (key, crt) = (format!("{name}.key"), format!("{name}.crt"));
    let subject = format!("/CN={name}");
    openssl(dir, &["-keyout", &key, "-out", &crt, "-subj", &subject]).unwrap();
}

/// Makes a certificate for this machine, of an authority in the same folder.
pub(crate) fn certificate(dir: &Path, name: &str, authority: &str) {
    let [key, crt] = ["key", "crt"].map(|end| format!("{name}.{end}"));
    let [ca_key, ca_crt] = ["key", "crt"].map(|end| format!("{authority}.{end}"));
    let subject = format!("/CN={name}");
    let files =
        ["-keyout", &key, "-out", &crt, "-subj", &subject, "-CA", &ca_crt, "-CAkey", &ca_key];
    let extensions = [
        "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-addext",
        "extendedKeyUsage=serverAuth,clientAuth",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ];
    openssl(dir, &[&files[..], &extensions].concat()).unwrap();
}

/// A kubeconfig for a user, who is given as YAML.
pub(super) fn kubeconfig(dir: &Path, api_port: u16, user: &str) -> String {
    let authority = dir.join("ca.crt").display().to_string();
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: test\n\
         contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n\
         clusters:\n\
         - name: test\n\
         \x20 cluster: {{server: 'https://127.0.0.1:{api_port}', certificate-authority: {authority}}}\n\
         users: [{{name: test, user: {user}}}]\n"
    )
}

/// A kubeconfig for plain HTTP at this port, where somebody else has the rights.
pub(crate) fn kubeconfig_of_front(port: u16) -> String {
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: test\n\
         contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n\
         clusters: [{{name: test, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
         users: [{{name: test, user: {{}}}}]\n"
    )
}

fn openssl(dir: &Path, words: &[&str]) -> Result<(), String> {
    let key = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let made = Command::new("openssl")
        .current_dir(dir)
        .args(key)
        .args(["-days", "2"])
        .args(words)
        .output()
        .map_err(|error| format!("openssl makes the certificates: {error}"))?;
    if made.status.success() {
        Ok(())
    } else {
        Err(format!("openssl 3 makes the certificates: {}", String::from_utf8_lossy(&made.stderr)))
    }
}
