//! The environment variables that the emulator minds, and the parameters that can be asked for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::io::Write;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use super::error::{INVALID_ARGUMENT, Outcome, lock};
use crate::nccl::NcclParamHandle;

/// A variable's text. NCCL reads such variables each time that it needs them.
pub(super) fn text(key: &str) -> Option<String> {
    std::env::var_os(key).map(|value| value.to_string_lossy().into_owned())
}

/// A variable's number, else `default`. NCCL reads it once; `NCCL_NO_CACHE` has it read each time.
pub(super) fn number(key: &'static str, default: i64) -> i64 {
    static READ: Mutex<BTreeMap<&str, i64>> = Mutex::new(BTreeMap::new());
    if let Some(&number) = lock(&READ).get(key) {
        return number;
    }
    let number = text(key)
        .and_then(|text| parse_number(&text))
        .unwrap_or(default);
    let uncached = text("NCCL_NO_CACHE").unwrap_or_default();
    if !uncached.split(',').any(|name| name == "ALL" || name == key) {
        lock(&READ).insert(key, number);
    }
    number
}

/// A variable's number, if it is set to one.
pub(super) fn set_number(key: &'static str) -> Option<i32> {
    const UNSET: i64 = i64::MIN;
    let number = number(key, UNSET);
    (number != UNSET).then_some(number as i32)
}

/// A whole number as C writes them: decimal, 0x hexadecimal or 0 octal.
fn parse_number(text: &str) -> Option<i64> {
    let text = text.trim_start();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let magnitude = match lower.strip_prefix("0x") {
        Some(hexadecimal) => i64::from_str_radix(hexadecimal, 16),
        None if lower.len() > 1 && lower.starts_with('0') => i64::from_str_radix(&lower, 8),
        None => lower.parse(),
    };
    magnitude
        .ok()
        .map(|number| if negative { -number } else { number })
}

/// Log levels with their numbers, in NCCL's order.
const LEVELS: [(&str, u32); 6] = [
    ("VERSION", 1),
    ("WARN", 2),
    ("ATTN", 6),
    ("INFO", 3),
    ("ABORT", 4),
    ("TRACE", 5),
];

/// Parts of NCCL whose log can be chosen, each with its bit.
const SUBSYSTEMS: [(&str, u32); 18] = [
    ("INIT", 0),
    ("COLL", 1),
    ("P2P", 2),
    ("SHM", 3),
    ("NET", 4),
    ("GRAPH", 5),
    ("TUNING", 6),
    ("ENV", 7),
    ("ALLOC", 8),
    ("ALLOC_HOST", 16),
    ("CALL", 9),
    ("PROXY", 10),
    ("NVLS", 11),
    ("BOOTSTRAP", 12),
    ("REG", 13),
    ("PROFILE", 14),
    ("RAS", 15),
    ("DESTROY", 17),
];

/// A parameter that can be asked for.
struct Parameter {
    key: &'static CStr,
    /// Not listed, unless `NCCL_PARAM_DUMP_ALL` is true.
    private: bool,
    read: fn(Option<String>) -> Value,
}

/// A parameter's value, as NCCL keeps it.
enum Value {
    Text(String),
    Switch(bool),
    Level(i32),
    Levels(u32),
    Subsystems(u64),
}

const fn parameter(
    key: &'static CStr,
    private: bool,
    read: fn(Option<String>) -> Value,
) -> Parameter {
    Parameter { key, private, read }
}

/// In the order in which NCCL lists them.
static PARAMETERS: [Parameter; 10] = [
    parameter(c"NCCL_PARAM_DUMP_ALL", true, read_switch),
    parameter(c"NCCL_DEBUG_FILE", false, |text| {
        Value::Text(text.unwrap_or_default())
    }),
    parameter(c"NCCL_DEBUG_TIMESTAMP_FORMAT", false, |text| {
        Value::Text(text.unwrap_or_else(|| "[%F %T] ".to_owned()))
    }),
    parameter(c"NCCL_DEBUG_TIMESTAMP_LEVELS", false, |text| {
        Value::Levels(read_levels(text).unwrap_or(1 << 2 | 1 << 6))
    }),
    parameter(c"NCCL_NO_CACHE", true, |text| {
        Value::Text(text.unwrap_or_default())
    }),
    parameter(c"NCCL_SET_THREAD_NAME", false, read_switch),
    parameter(c"NCCL_WARN_ENABLE_DEBUG_INFO", true, read_switch),
    parameter(c"NCCL_DEBUG_SUBSYS", false, |text| {
        let list = text.and_then(|text| read_list(&text, &SUBSYSTEMS, u64::MAX));
        Value::Subsystems(list.unwrap_or(1 << 0 | 1 << 7 | 1 << 12))
    }),
    parameter(c"NCCL_DEBUG_LEVELS", false, |text| {
        Value::Levels(read_levels(text).unwrap_or(0))
    }),
    parameter(c"NCCL_DEBUG", false, |text| Value::Level(read_level(text))),
];

fn read_switch(text: Option<String>) -> Value {
    let text = text.unwrap_or_default().to_ascii_uppercase();
    Value::Switch(matches!(&text[..], "1" | "T" | "TRUE"))
}

fn read_level(text: Option<String>) -> i32 {
    let text = text.unwrap_or_default();
    let level = LEVELS
        .iter()
        .find(|(name, _)| text.eq_ignore_ascii_case(name));
    level.map_or(0, |(_, level)| *level as i32)
}

fn read_levels(text: Option<String>) -> Option<u32> {
    let all = LEVELS.iter().fold(0, |all, (_, level)| all | 1 << level);
    read_list(&text?, &LEVELS, all).map(|levels| levels as u32)
}

/// The bits of the names in a list; `^` before it means all others. `None` if a name is unknown.
fn read_list(text: &str, names: &[(&str, u32)], all: u64) -> Option<u64> {
    let (negated, list) = match text.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, text),
    };
    let mut bits = 0;
    for word in list.split(',').filter(|word| !word.is_empty()) {
        bits |= match names
            .iter()
            .find(|(name, _)| word.eq_ignore_ascii_case(name))
        {
            Some((_, bit)) => 1 << bit,
            None if word.eq_ignore_ascii_case("ALL") => all,
            None => return None,
        };
    }
    Some(if negated { !bits } else { bits })
}

/// The names in a list of bits.
fn list(bits: u64, names: &[(&str, u32)]) -> String {
    let set: Vec<&str> = names
        .iter()
        .filter(|(_, bit)| bits & 1 << bit != 0)
        .map(|(name, _)| *name)
        .collect();
    match set.len() {
        0 => "NONE".to_owned(),
        all if all == names.len() => "ALL".to_owned(),
        _ => set.join(","),
    }
}

impl Parameter {
    fn value(&self) -> Value {
        (self.read)(text(&self.key.to_string_lossy()))
    }

    fn handle(&self) -> NcclParamHandle {
        ptr::from_ref(self).cast_mut().cast()
    }
}

impl Value {
    /// The bytes that C sees.
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Text(text) => c_string(text).into_bytes_with_nul(),
            Self::Switch(on) => vec![on.into()],
            Self::Level(level) => level.to_ne_bytes().into(),
            Self::Levels(levels) => levels.to_ne_bytes().into(),
            Self::Subsystems(subsystems) => subsystems.to_ne_bytes().into(),
        }
    }

    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Switch(on) => if on { "TRUE" } else { "FALSE" }.to_owned(),
            Self::Level(level) => LEVELS
                .iter()
                .find(|(_, number)| *number as i32 == level)
                .map_or("<unknown>", |(name, _)| name)
                .to_owned(),
            Self::Levels(levels) => list(levels.into(), &LEVELS),
            Self::Subsystems(subsystems) => list(subsystems, &SUBSYSTEMS),
        }
    }
}

/// A variable's text as a C string; it never holds a zero byte.
fn c_string(text: String) -> CString {
    CString::new(text).unwrap_or_default()
}

/// The parameter of a name.
fn named(key: &CStr) -> Outcome<&'static Parameter> {
    PARAMETERS
        .iter()
        .find(|one| one.key == key)
        .ok_or(INVALID_ARGUMENT)
}

/// The parameter of a handle.
fn bound(handle: NcclParamHandle) -> Outcome<&'static Parameter> {
    PARAMETERS
        .iter()
        .find(|one| one.handle() == handle)
        .ok_or(INVALID_ARGUMENT)
}

/// The parameters that are listed.
fn listed() -> impl Iterator<Item = &'static Parameter> {
    let all = match PARAMETERS[0].value() {
        Value::Switch(all) => all,
        _ => false,
    };
    PARAMETERS.iter().filter(move |one| all || !one.private)
}

/// `ncclParamBind`.
pub(super) fn bind(key: &CStr) -> Outcome<NcclParamHandle> {
    named(key).map(Parameter::handle)
}

/// A parameter that NCCL keeps as `u32`; those of the other number types are there for none.
pub(super) fn as_u32(handle: NcclParamHandle) -> Outcome<u32> {
    match bound(handle)?.value() {
        Value::Levels(levels) => Ok(levels),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// A parameter that NCCL keeps as `u64`.
pub(super) fn as_u64(handle: NcclParamHandle) -> Outcome<u64> {
    match bound(handle)?.value() {
        Value::Subsystems(subsystems) => Ok(subsystems),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// Says that the parameter is not of the type asked for, or that there is none.
pub(super) fn as_other(handle: NcclParamHandle) -> Outcome {
    bound(handle)?;
    Err(INVALID_ARGUMENT)
}

thread_local! {
    /// What `ncclParamGetStr` and `ncclParamGetParameter` gave this thread last.
    static TEXTS: RefCell<[CString; 2]> = RefCell::default();
    /// The table that this thread was given last.
    static KEYS: RefCell<Vec<*const c_char>> = const { RefCell::new(Vec::new()) };
}

/// Keeps a string for the caller until the thread's next one of the same kind.
fn keep(kind: usize, text: CString) -> *const c_char {
    TEXTS.with_borrow_mut(|texts| {
        texts[kind] = text;
        texts[kind].as_ptr()
    })
}

/// A parameter that NCCL keeps as a string.
pub(super) fn as_text(handle: NcclParamHandle) -> Outcome<*const c_char> {
    match bound(handle)?.value() {
        Value::Text(text) => Ok(keep(0, c_string(text))),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// The bytes of a parameter's value.
pub(super) fn as_bytes(handle: NcclParamHandle) -> Outcome<Vec<u8>> {
    bound(handle).map(|one| one.value().bytes())
}

/// A parameter's value as text, and its length.
pub(super) fn described(key: &CStr) -> Outcome<(*const c_char, i32)> {
    let text = c_string(named(key)?.value().text());
    let length = text.count_bytes() as i32;
    Ok((keep(1, text), length))
}

/// The names of the parameters that are listed.
pub(super) fn keys() -> (*mut *const c_char, i32) {
    KEYS.with_borrow_mut(|keys| {
        *keys = listed().map(|one| one.key.as_ptr()).collect();
        (keys.as_mut_ptr(), keys.len() as i32)
    })
}

/// `ncclParamDumpAll`.
pub(super) fn dump() {
    let mut lines = String::from("=== ncclParam Registry Dump ===\n");
    for one in listed() {
        lines += &format!("{}={}\n", one.key.to_string_lossy(), one.value().text());
    }
    let _ = std::io::stdout().write_all(lines.as_bytes());
}

/// What `NCCL_DEBUG` was when it was read; -1 before that.
static LEVEL: AtomicI32 = AtomicI32::new(-1);

/// Whether `NCCL_DEBUG` asks for warnings. It is read once.
pub(super) fn prints_warnings() -> bool {
    if LEVEL.load(Relaxed) < 0 {
        LEVEL.store(read_level(text("NCCL_DEBUG")), Relaxed);
    }
    LEVEL.load(Relaxed) >= 2
}

/// `ncclResetDebugInit`.
pub(super) fn reset_debug() {
    LEVEL.store(-1, Relaxed);
}

/// Copies a value's bytes to a caller's place of `room` bytes. The number of bytes copied: all or
/// none.
///
/// # Safety
///
/// `out` has room for `room` bytes.
pub(super) unsafe fn copy_out(bytes: &[u8], out: *mut c_void, room: i32) -> Outcome<i32> {
    if bytes.len() > room.max(0) as usize {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the bytes fit, as was just seen, and the caller vouches for the place.
    unsafe {
        out.cast::<u8>()
            .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
    };
    Ok(bytes.len() as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(key: &CStr, text: &str) -> String {
        let one = named(key).unwrap();
        (one.read)(Some(text.to_owned())).text()
    }

    #[test]
    fn values_read_as_the_library_reads_them() {
        for (key, text, value) in [
            (c"NCCL_DEBUG", "info", "INFO"),
            (c"NCCL_DEBUG", "bogus", "<unknown>"),
            (
                c"NCCL_DEBUG_SUBSYS",
                "DESTROY,ALLOC_HOST,RAS",
                "ALLOC_HOST,RAS,DESTROY",
            ),
            (c"NCCL_DEBUG_SUBSYS", "init,bogus", "INIT,ENV,BOOTSTRAP"),
            (c"NCCL_DEBUG_SUBSYS", "^ALL", "NONE"),
            (c"NCCL_DEBUG_SUBSYS", "", "NONE"),
            (
                c"NCCL_DEBUG_LEVELS",
                "^WARN,INFO",
                "VERSION,ATTN,ABORT,TRACE",
            ),
            (c"NCCL_DEBUG_LEVELS", "all", "ALL"),
            (c"NCCL_SET_THREAD_NAME", "t", "TRUE"),
            (c"NCCL_SET_THREAD_NAME", "2", "FALSE"),
        ] {
            assert_eq!(describe(key, text), value, "{key:?}={text}");
        }
        assert_eq!(read_list("^INIT", &SUBSYSTEMS, u64::MAX), Some(!1));
        assert_eq!(read_levels(Some("ALL".into())), Some(0x7e));
    }

    #[test]
    fn unset_values() {
        let unset = |key| (named(key).unwrap().read)(None);
        assert_eq!(unset(c"NCCL_DEBUG_SUBSYS").bytes(), 4225u64.to_ne_bytes());
        assert_eq!(
            unset(c"NCCL_DEBUG_TIMESTAMP_LEVELS").bytes(),
            0x44u32.to_ne_bytes()
        );
        assert_eq!(unset(c"NCCL_DEBUG_TIMESTAMP_FORMAT").bytes().len(), 9);
        assert_eq!(unset(c"NCCL_DEBUG_FILE").bytes(), [0]);
        assert_eq!(unset(c"NCCL_DEBUG").bytes(), [0; 4]);
    }

    #[test]
    fn numbers_are_written_as_in_c() {
        for (text, number) in [
            ("12", Some(12)),
            ("-1", Some(-1)),
            ("0x10", Some(16)),
            ("010", Some(8)),
            ("0", Some(0)),
            (" 7", Some(7)),
            ("", None),
            ("7 apples", None),
            ("0x", None),
        ] {
            assert_eq!(parse_number(text), number, "{text:?}");
        }
    }
}
