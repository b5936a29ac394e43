//! What comes back after a restart, and what becomes of every kind of damage.

use super::*;

fn key(name: &str, trigger: u64) -> TrackerKey {
    TrackerKey { workload: WorkloadKey::new("prod", name), trigger }
}

/// A state that differs from the default, as a tick leaves it.
fn learned() -> State {
    let (spec, observation) =
        (crate::decision::Spec::default(), crate::web::fixtures::observation());
    let mut state = State::default();
    for tick in 0..50_i64 {
        let now = Moment(1_000_000 + tick * 5_000);
        let (_decision, next) = crate::decision::decide(&spec, state, &observation, now);
        state = next;
    }
    state
}

/// A directory with two saved states, and the file's path.
fn saved() -> (tempfile::TempDir, StateDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let states = StateDir::open(dir.path()).unwrap();
    let (first, second) = (key("a", 0), key("b", u64::MAX));
    let state = learned();
    states.save(Moment(7), [(&first, &state), (&second, &state)]).unwrap();
    let file = dir.path().join(FILE);
    (dir, states, file)
}

fn set_aside(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name.contains("damaged"));
    names.sort();
    names
}

#[test]
fn what_was_saved_comes_back_exactly() {
    let (_dir, states, _file) = saved();
    let restored = states.restore();
    assert_eq!(restored.saved_at, Some(Moment(7)));
    assert_eq!(restored.damage, None);
    let state = learned();
    assert_ne!(state, State::default());
    assert_eq!(restored.states, [(key("a", 0), state.clone()), (key("b", u64::MAX), state)]);
}

#[test]
fn an_empty_directory_restores_nothing_and_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let restored = StateDir::open(&dir.path().join("deep/er")).unwrap().restore();
    assert!(restored.states.is_empty());
    assert_eq!((restored.saved_at, restored.damage), (None, None));
}

#[test]
fn a_save_replaces_the_one_before() {
    let (dir, states, _file) = saved();
    let only = key("c", 1);
    let bytes = states.save(Moment(8), [(&only, &State::default())]).unwrap();
    let restored = states.restore();
    assert_eq!(restored.saved_at, Some(Moment(8)));
    assert_eq!(restored.states, [(only, State::default())]);
    assert_eq!(fs::metadata(dir.path().join(FILE)).unwrap().len(), bytes);
    assert!(!dir.path().join(NEW_FILE).exists());
}

#[test]
fn saves_at_the_same_time_are_one_after_the_other() {
    let (_dir, states, _file) = saved();
    let (key, state) = (key("a", 0), learned());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let states = states.clone();
            let (key, state) = (&key, &state);
            scope.spawn(move || {
                for _ in 0..25 {
                    states.save(Moment(8), [(key, state)]).unwrap();
                }
            });
        }
    });
    let restored = states.restore();
    assert!(restored.damage.is_none(), "{:?}", restored.damage);
    assert_eq!(restored.saved_at, Some(Moment(8)));
}

#[test]
fn a_save_that_fails_leaves_nothing_behind_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let states = StateDir::open(dir.path()).unwrap();
    assert!(!dir.path().join(NEW_FILE).exists());
    fs::create_dir_all(dir.path().join(FILE).join("full")).unwrap();
    let error = states.save(Moment(1), []).unwrap_err().to_string();
    assert!(error.contains("state.jsonl` cannot be written: make room there"), "{error}");
    assert!(!dir.path().join(NEW_FILE).exists());
}

#[test]
fn the_first_saves_come_soon_and_the_others_every_five_minutes() {
    let waits: Vec<u64> = save_intervals_ms().take(7).map(|ms| ms / 1_000).collect();
    assert_eq!(waits, [15, 30, 60, 120, 240, 300, 300]);
}

#[test]
fn no_states_are_saved_and_restored_as_none() {
    let (_dir, states, _file) = saved();
    states.save(Moment(9), []).unwrap();
    let restored = states.restore();
    assert_eq!((restored.saved_at, restored.damage), (Some(Moment(9)), None));
    assert!(restored.states.is_empty());
}

/// Damages a saved file and checks the finding, the file set aside and that the next save works.
fn check(damage: impl FnOnce(Vec<u8>) -> Vec<u8>, expected: &Damage) {
    let (dir, states, file) = saved();
    fs::write(&file, damage(fs::read(&file).unwrap())).unwrap();
    let restored = states.restore();
    assert_eq!(restored.damage.as_ref(), Some(expected));
    assert!(restored.states.is_empty(), "half of a file is not used");
    assert_eq!(set_aside(dir.path()), ["state.jsonl.damaged-1"]);
    assert!(!file.exists());
    states.save(Moment(9), []).unwrap();
    assert_eq!(states.restore().damage, None);
}

fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.contains(from), "{text}");
    text.replacen(from, to, 1).into_bytes()
}

#[test]
fn an_empty_file_is_cut_off() {
    check(|_| Vec::new(), &Damage::CutOff(0));
}

#[test]
fn a_file_of_another_kind_is_damaged() {
    check(|_| b"\x7fELF\x02\x01\x01\n".to_vec(), &Damage::Line(1));
}

#[test]
fn a_newer_version_is_set_aside() {
    check(
        |bytes| replaced(&bytes, r#""ghostscaler_state":1"#, r#""ghostscaler_state":2"#),
        &Damage::Version(2),
    );
}

#[test]
fn a_file_without_its_end_is_cut_off() {
    check(
        |mut bytes| {
            bytes.truncate(bytes.len() - 20);
            bytes
        },
        &Damage::CutOff(4),
    );
}

#[test]
fn a_file_without_its_footer_is_cut_off() {
    check(
        |bytes| {
            let footer = bytes.windows(2).rposition(|pair| pair == b"\n{").unwrap();
            bytes[..=footer].to_vec()
        },
        &Damage::CutOff(3),
    );
}

#[test]
fn a_changed_value_fails_the_checksum() {
    check(|bytes| replaced(&bytes, r#""name":"a""#, r#""name":"x""#), &Damage::Checksum);
}

#[test]
fn a_tracker_that_is_missing_fails_the_count() {
    check(
        |bytes| {
            let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
            lines.remove(1);
            lines.concat()
        },
        &Damage::Checksum,
    );
}

#[test]
fn a_line_that_is_no_tracker_is_damaged() {
    check(|bytes| replaced(&bytes, r#"{"namespace""#, r#"{"nomespace""#), &Damage::Checksum);
}

#[test]
fn anything_after_the_footer_is_damage() {
    check(
        |mut bytes| {
            bytes.extend_from_slice(b"{}\n");
            bytes
        },
        &Damage::Line(5),
    );
}

#[test]
fn an_endless_line_is_not_read_to_its_end() {
    check(|_| vec![b' '; 3 * 1024 * 1024], &Damage::CutOff(1));
}

#[test]
fn a_directory_in_the_files_place_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let states = StateDir::open(dir.path()).unwrap();
    fs::create_dir(dir.path().join(FILE)).unwrap();
    let restored = states.restore();
    assert_eq!(restored.damage, Some(Damage::Unreadable(io::ErrorKind::IsADirectory)));
    states.save(Moment(1), []).unwrap();
}

#[test]
fn damaged_files_do_not_pile_up() {
    let (dir, states, file) = saved();
    for _ in 0..12 {
        fs::write(&file, "x").unwrap();
        assert!(states.restore().damage.is_some());
    }
    assert_eq!(set_aside(dir.path()).len(), 9);
}

#[test]
fn a_place_that_cannot_be_written_is_told_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = StateDir::open(&file.join("state")).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("cannot be written to") && text.contains("file/state"), "{text}");
}
