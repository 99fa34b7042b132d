//! What is compared, for one set of headers.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use crate::declarations::{Constant, Declarations, Kind, Library, Record, Since};
use crate::header::{Header, Named};
use crate::layouts::Layout;
use crate::{CHANGED, CHOSEN, COUNTS, LEFT_OUT, RENAMED};

const FUNCTIONS: &str = "functions";
const PARAMETERS: &str = "parameter names";
const STRUCTS: &str = "structs and handles";
const VALUES: &str = "enumerators and constants";
const COMPLETE: &str = "completeness";
pub const KINDS: [&str; 5] = [FUNCTIONS, PARAMETERS, STRUCTS, VALUES, COMPLETE];

/// The numbers of a release, in their order.
pub type Release = Vec<u32>;

pub fn release(text: &str) -> Release {
    let numbers = text.split(|c: char| !c.is_ascii_digit());
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// How `cuda.h` names its functions.
enum Names {
    /// As a program does: the newest form of each, under a macro of the plain name.
    Public,
    /// As the library does, the older forms as well.
    Symbols,
}

/// One `nccl.h` and the CUDA headers that it includes, or a `cuda.h` alone.
pub struct Headers {
    pub name: String,
    pub nccl: Option<PathBuf>,
    pub cuda: PathBuf,
    /// Whether it has to agree whole.
    pub newest: bool,
}

/// The first release of each item of `nccl.h`.
#[derive(Default)]
pub struct Facts {
    pub first: BTreeMap<String, Release>,
    /// The releases of the wheels that were read.
    pub wheels: Vec<Release>,
}

/// One thing that differs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    item: String,
    ours: String,
    theirs: String,
}

fn finding(item: &str, ours: &str, theirs: &str) -> Finding {
    Finding {
        item: item.into(),
        ours: ours.into(),
        theirs: theirs.into(),
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.item)?;
        writeln!(f, "    ours    {}", self.ours)?;
        writeln!(f, "    header  {}", self.theirs)
    }
}

/// A line of the C++ file, and what its refusal means.
struct Check {
    kind: &'static str,
    code: String,
    refused: Finding,
}

struct Proof<'a> {
    ours: &'a Declarations,
    facts: &'a Facts,
    library: Library,
    header: Header,
    /// The functions that a program sees; the others of cuda.h are older symbols.
    public: BTreeSet<String>,
    version: Release,
    newest: bool,
    checks: Vec<Check>,
    found: Found,
}

/// What one set of headers has to say, by kind of proof.
#[derive(Default)]
pub struct Found {
    /// How many comparisons were made.
    pub compared: BTreeMap<&'static str, usize>,
    pub differ: Vec<(&'static str, Finding)>,
}

/// Compares the declarations of one library with one set of headers.
pub fn prove(
    ours: &Declarations,
    layouts: &[Layout],
    facts: &Facts,
    headers: &Headers,
) -> Result<Found, String> {
    let nccl = headers.nccl.is_some();
    let read = |names| {
        let output = compile(headers, names, &["-E", "-dD"], &includes(headers));
        if !output.status.success() {
            return Err(broken(headers, &output));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(Header::read(&text, if nccl { "nccl.h" } else { "cuda.h" }))
    };
    let mut header = read(Names::Public)?;
    let public = header.functions.keys().cloned().collect();
    if !nccl {
        for (name, function) in read(Names::Symbols)?.functions {
            header.functions.entry(name).or_insert(function);
        }
    }
    let number = |name: &str| header.macros[name].parse::<u32>().unwrap();
    let (library, version) = if nccl {
        let version = ["NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"].map(number);
        (Library::Nccl, version.to_vec())
    } else {
        let code = number("CUDA_VERSION");
        (Library::Cuda, vec![code / 1000, code % 1000 / 10])
    };
    let mut proof = Proof {
        ours,
        facts,
        library,
        header,
        public,
        version,
        newest: headers.newest,
        checks: Vec::new(),
        found: Found::default(),
    };
    proof.functions();
    proof.records(layouts);
    proof.handles();
    proof.values();
    proof.undeclared();
    proof.judge(headers)?;
    Ok(proof.found)
}

impl Proof<'_> {
    fn find(&mut self, kind: &'static str, item: &str, ours: &str, theirs: &str) {
        self.found.differ.push((kind, finding(item, ours, theirs)));
    }

    fn compared(&mut self, kind: &'static str) {
        *self.found.compared.entry(kind).or_default() += 1;
    }

    /// Lets the compiler judge `code`; an `@` in it becomes a name of its own.
    fn check(&mut self, kind: &'static str, item: &str, ours: &str, theirs: &str, code: String) {
        self.compared(kind);
        let refused = finding(item, ours, theirs);
        self.checks.push(Check {
            kind,
            code,
            refused,
        });
    }

    /// Compares a number of ours with an expression for the header's.
    fn equal(&mut self, kind: &'static str, item: &str, ours: &str, theirs: &str, text: &str) {
        let code = format!("equal<(long long)({ours}), (long long)({theirs})> @;");
        self.check(kind, item, ours, text, code);
    }

    /// Whether the header has an item. The newest has to have it, an older one if it is as old.
    fn has(&mut self, item: &str, has: bool, since: &Since) -> bool {
        self.compared(COMPLETE);
        let said = since.as_deref();
        let first = match self.library {
            Library::Nccl => self.facts.first.get(item).cloned().or(said.map(release)),
            Library::Cuda => said.map(release),
        };
        if self.library == Library::Cuda && said.is_some_and(|said| !said.starts_with("CUDA ")) {
            self.find(
                COMPLETE,
                item,
                said.unwrap(),
                "Since CUDA <release>., a last line",
            );
        }
        let expected = self.newest || first.is_none_or(|first| first <= self.version);
        if expected && !has {
            self.find(COMPLETE, item, "declared", "lacks it");
        } else if has && !expected {
            self.find(COMPLETE, item, "declared as younger", "has it");
        }
        has
    }

    /// Whether the header is too old to agree about an item.
    fn changed(&self, item: &str) -> bool {
        let changed = |(start, first, _): &(&str, &str, &str)| {
            item.starts_with(start) && self.version < release(first)
        };
        CHANGED.iter().any(changed)
    }

    /// Our C type, and the one that the header is expected to have.
    fn types(&mut self, kind: &'static str, item: &str, ours: &Kind) -> Option<(String, String)> {
        match &ours.c {
            Ok(ours) => {
                let chosen = CHOSEN.iter().find(|c| c.0 == item && c.1 == ours);
                Some((ours.clone(), chosen.map_or(&**ours, |c| c.2).to_owned()))
            }
            Err(reason) => {
                self.find(kind, item, reason, "");
                None
            }
        }
    }

    fn functions(&mut self) {
        let (ours, library) = (self.ours, self.library);
        for function in ours.functions.iter().filter(|f| f.library == library) {
            let name = &function.name;
            let there = self.header.functions.get(name).cloned();
            if !self.has(name, there.is_some(), &function.since) {
                continue;
            }
            let there = there.unwrap();
            if self.changed(name) {
                continue;
            }
            let mut kinds = vec![self.types(FUNCTIONS, name, &function.output)];
            for (parameter, kind) in &function.parameters {
                kinds.push(self.types(FUNCTIONS, &format!("{name}.{parameter}"), kind));
            }
            if let Some(kinds) = kinds.into_iter().collect::<Option<Vec<_>>>() {
                let (ours, theirs): (Vec<_>, Vec<_>) = kinds.into_iter().unzip();
                let shown = format!("{} {name}({})", ours[0], ours[1..].join(", "));
                let expected = format!("{}(*)({})", theirs[0], theirs[1..].join(", "));
                let code = format!("same<{expected}, decltype(&{name})> @;");
                self.check(FUNCTIONS, name, &shown, &there.text, code);
            }
            // CUDA's names change from release to release.
            if library == Library::Cuda && !self.newest {
                continue;
            }
            for (theirs, (parameter, kind)) in there.parameters.iter().zip(&function.parameters) {
                self.alike(PARAMETERS, name, parameter, kind, theirs);
            }
        }
    }

    /// Compares names: equal but for case and underscores, and in CUDA for letters before it that
    /// tell a pointer (`p`), a handle (`h`) or device memory (`d`). And where the compiler sees no
    /// difference between two types, compares how they are written.
    fn alike(&mut self, kind: &'static str, owner: &str, ours: &str, of: &Kind, theirs: &Named) {
        self.compared(kind);
        let item = format!("{owner}.{}", theirs.name);
        let (name, any) = (&theirs.name, format!("*.{}", theirs.name));
        let bare = name.trim_start_matches(['p', 'h', 'd']);
        let letters = match self.library {
            Library::Nccl => 0,
            Library::Cuda => name.len() - bare.len(),
        };
        let named = match RENAMED
            .iter()
            .find(|renamed| renamed.0 == item || renamed.0 == any)
        {
            Some((_, chosen, _)) => ours == *chosen,
            None => (0..=letters).any(|letters| fold(ours) == fold(&name[letters..])),
        };
        let written = match &*of.rust {
            "usize" => theirs.text.contains("size_t"),
            "u64" => theirs.text.contains("uint64_t"),
            _ => true,
        };
        if !named || !written {
            self.find(kind, &item, &format!("{ours}: {}", of.rust), &theirs.text);
        }
    }

    fn records(&mut self, layouts: &[Layout]) {
        let (ours, library) = (self.ours, self.library);
        for record in ours.records.iter().filter(|r| r.library == library) {
            let opaque = record.fields.is_empty();
            let there = match self.header.records.get(&record.c) {
                None if opaque && self.header.types.contains(&record.c) => Some(Vec::new()),
                there => there.cloned(),
            };
            if !self.has(&record.c, there.is_some(), &record.since) || opaque {
                continue;
            }
            self.record(record, &there.unwrap());
            if self.newest {
                self.initializer(record);
            }
            if let Some(layout) = layouts.iter().find(|layout| layout.rust == record.rust) {
                self.rust_layout(record, layout);
            } else if !layouts.is_empty() {
                self.find(STRUCTS, &record.rust, "not in tests/abi/layouts.rs", "");
            }
        }
    }

    /// Writes the struct anew with our types under the header's names, and compares the two.
    fn record(&mut self, record: &Record, there: &[Named]) {
        let c = &record.c;
        let mirror = format!("ours_{}", record.rust);
        let mut body = String::new();
        let mut checks = Vec::new();
        for field in &record.fields {
            let item = format!("{c}.{}", field.c);
            let Some((kind, expected)) = self.types(STRUCTS, &item, &field.kind) else {
                continue;
            };
            body += &format!("self<{kind}> {}; ", field.c);
            let theirs = there.iter().find(|theirs| theirs.name == field.c);
            if self.has(&item, theirs.is_some(), &field.since) {
                let theirs = theirs.unwrap();
                self.alike(STRUCTS, c, &field.rust, &field.kind, theirs);
                checks.push((&field.c, item, kind, expected, &theirs.text));
            }
        }
        let word = if record.is_union { "union" } else { "struct" };
        let code = format!("{word} {mirror} {{ {body}}};");
        self.check(STRUCTS, c, &body, "refused", code);
        for (name, item, kind, expected, text) in checks {
            let code = format!("same<self<{expected}>, decltype({c}::{name})> @;");
            self.check(STRUCTS, &item, &kind, text, code);
            let offset = |of: &str| format!("offsetof({of}, {name})");
            let item = format!("{item}, offset");
            self.equal(STRUCTS, &item, &offset(&mirror), &offset(c), text);
        }
        let order: Vec<_> = there.iter().map(|field| &*field.name).collect();
        let ours: Vec<_> = record.fields.iter().map(|field| &*field.c).collect();
        if !ours.starts_with(&order) {
            self.find(STRUCTS, c, &ours.join(", "), &order.join(", "));
        }
        if !self.newest {
            let code = format!("static_assert(sizeof({mirror}) >= sizeof({c}));");
            self.check(STRUCTS, c, "smaller", "greater", code);
            return;
        }
        for word in ["sizeof", "alignof"] {
            let of = |of: &str| format!("{word}({of})");
            self.equal(STRUCTS, &of(c), &of(&mirror), &of(c), "");
        }
        // The exact number: a missing last field can hide in the padding.
        if !record.is_union {
            let names: Vec<_> = (0..ours.len()).map(|n| format!("f{n}")).collect();
            let code = format!(
                "auto @ = []({c} all) {{ auto [{}] = all; }};",
                names.join(", ")
            );
            let count = |count| format!("{count} fields");
            self.check(STRUCTS, c, &count(ours.len()), &count(there.len()), code);
        }
    }

    /// Compares what the Rust compiler made of the struct.
    fn rust_layout(&mut self, record: &Record, layout: &Layout) {
        let c = &record.c;
        let listed: Vec<_> = layout.fields.iter().map(|(name, _)| *name).collect();
        let declared: Vec<_> = record.fields.iter().map(|field| &*field.rust).collect();
        if listed != declared {
            self.find(STRUCTS, c, "tests/abi/layouts.rs has other fields", "");
            return;
        }
        for (field, (_, offset)) in record.fields.iter().zip(&layout.fields) {
            let item = format!("{c}.{}", field.c);
            let there = self.header.records[c]
                .iter()
                .any(|theirs| theirs.name == field.c);
            if there {
                let (ours, theirs) = (offset.to_string(), format!("offsetof({c}, {})", field.c));
                let item = format!("{item}, offset in Rust");
                self.equal(STRUCTS, &item, &ours, &theirs, "");
            }
        }
        if self.newest {
            for (word, ours) in [("sizeof", layout.size), ("alignof", layout.align)] {
                let item = format!("{word}({c}) in Rust");
                self.equal(
                    STRUCTS,
                    &item,
                    &ours.to_string(),
                    &format!("{word}({c})"),
                    "",
                );
            }
        }
    }

    fn initializer(&mut self, record: &Record) {
        let Some((name, values)) = &record.initializer else {
            return;
        };
        let there = self.header.macros.get(name).cloned();
        if !self.has(name, there.is_some(), &None) {
            return;
        }
        let text = there.unwrap();
        let made = format!("made_{}", record.rust);
        let code = format!("constexpr {} {made} = {name};", record.c);
        self.check(VALUES, name, "a constant", &text, code);
        let elements: Vec<_> = text.trim_matches(['{', '}', ' ']).split(", ").collect();
        for (place, (field, value)) in values.iter().enumerate() {
            let item = format!("{name}, {field}");
            let text = elements.get(place).unwrap_or(&"nothing");
            match value {
                Ok(value) => {
                    let code = format!("equal<1, {made}.{field} == ({value})> @;");
                    self.check(VALUES, &item, value, text, code);
                }
                Err(reason) => self.find(VALUES, &item, reason, text),
            }
        }
    }

    /// The aliases: as large as the header's type, and of its kind.
    fn handles(&mut self) {
        let (ours, library) = (self.ours, self.library);
        for alias in ours.aliases.iter().filter(|a| a.library == library) {
            let c = &alias.c;
            let there = self.header.types.contains(c);
            if self.has(c, there, &alias.since) && !self.changed(c) {
                if let Some((kind, _)) = self.types(STRUCTS, c, &alias.kind) {
                    let code = format!("static_assert(stands_for<{kind}, {c}>);");
                    self.check(STRUCTS, c, &kind, "another kind of type", code);
                }
            }
        }
    }

    fn values(&mut self) {
        let (ours, library) = (self.ours, self.library);
        for of in ours.enums.iter().filter(|e| e.library == library) {
            let there = self.header.types.contains(&of.c) || self.header.macros.contains_key(&of.c);
            if self.has(&of.c, there, &of.since) {
                let theirs = format!("sizeof({})", of.c);
                self.equal(VALUES, &theirs, "sizeof(int)", &theirs, "");
            }
            for value in &of.values {
                if !ends_in(&value.c, &value.rust) {
                    self.find(VALUES, &value.c, &value.rust, "another name");
                }
                self.value(value, &of.since);
            }
        }
        for constant in ours.constants.iter().filter(|c| c.library == library) {
            self.value(constant, &None);
        }
        if library == Library::Nccl && self.newest {
            for (x, y, z) in [
                (2, 7, 8),
                (2, 8, 4),
                (2, 9, 6),
                (2, 32, 3),
                (3, 0, 0),
                (1, 9, 0),
            ] {
                let ours = metrale_gpu_sys::nccl::version_code(x, y, z).to_string();
                let theirs = format!("NCCL_VERSION({x}, {y}, {z})");
                self.equal(VALUES, &theirs, &ours, &theirs, "");
            }
        }
    }

    fn value(&mut self, constant: &Constant, since_of_type: &Since) {
        let c = &constant.c;
        let (enumerators, macros) = (&self.header.enumerators, &self.header.macros);
        let there = enumerators.get(c).or_else(|| macros.get(c)).cloned();
        let since = constant.since.clone().or_else(|| since_of_type.clone());
        let here = self.has(c, there.is_some(), &since);
        if !here || self.changed(c) || !self.newest && COUNTS.contains(&&**c) {
            return;
        }
        let text = there.unwrap();
        let ours = match &constant.value {
            Ok(ours) => ours,
            Err(reason) => return self.find(VALUES, c, reason, &text),
        };
        // Text, null and fractions are no template arguments.
        let same = if ours.starts_with('"') {
            format!("std::string_view({c}) == {ours}")
        } else if ours == "nullptr" || ours.contains('.') {
            format!("({c}) == {ours}")
        } else {
            // Nor is a number cast to a pointer, as in ((CUstream)0x1).
            let cast = text
                .strip_prefix("((")
                .and_then(|rest| rest.strip_suffix(')'));
            let number = cast
                .and_then(|rest| rest.split_once(')'))
                .map(|(_, number)| number);
            return self.equal(VALUES, c, ours, number.unwrap_or(c), &text);
        };
        self.check(VALUES, c, ours, &text, format!("equal<1, {same}> @;"));
    }

    /// What the header has and the crate does not: all of nccl.h; of the newest cuda.h the stream
    /// and event functions, and the enumerators of each declared enum.
    fn undeclared(&mut self) {
        if self.library == Library::Cuda && !self.newest {
            return;
        }
        let ours = self.ours;
        let mut declared: BTreeSet<&String> = ours.macros.iter().collect();
        declared.extend(ours.functions.iter().map(|f| &f.name));
        declared.extend(ours.records.iter().map(|r| &r.c));
        declared.extend(
            ours.records
                .iter()
                .flat_map(|r| &r.initializer)
                .map(|i| &i.0),
        );
        declared.extend(ours.aliases.iter().map(|a| &a.c));
        declared.extend(ours.constants.iter().map(|c| &c.c));
        declared.extend(ours.enums.iter().map(|e| &e.c));
        declared.extend(ours.enums.iter().flat_map(|e| &e.values).map(|v| &v.c));

        let header = &self.header;
        let functions = self
            .public
            .iter()
            .map(|name| (name, &header.functions[name].text));
        let mut there: Vec<(&String, &String)> = Vec::new();
        if self.library == Library::Nccl {
            there.extend(functions);
            there.extend(&header.enumerators);
            there.extend(&header.macros);
            there.extend(header.types.iter().map(|name| (name, name)));
        } else {
            // A macro here maps a name to its newest form, which is among the functions.
            let attributes = header.macros.iter();
            let attributes =
                attributes.filter(|(name, _)| name.starts_with("CU_STREAM_ATTRIBUTE_"));
            let wanted = |name: &str| name.starts_with("cuStream") || name.starts_with("cuEvent");
            there.extend(functions.filter(|(name, _)| wanted(name)).chain(attributes));
            for names in ours.enums.iter().filter_map(|e| header.enums.get(&e.c)) {
                there.extend(names.iter().map(|name| (name, &header.enumerators[name])));
            }
        }
        there.retain(|(name, _)| {
            let left_out = LEFT_OUT.iter().any(|(out, _)| match out.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == out,
            });
            !declared.contains(name) && !left_out
        });
        let missing = there
            .iter()
            .map(|(name, text)| finding(name, "not declared", text));
        self.found
            .differ
            .extend(missing.map(|missing| (COMPLETE, missing)));
    }

    /// Runs the compiler on all checks, one a line.
    fn judge(&mut self, headers: &Headers) -> Result<(), String> {
        let mut text = includes(headers) + PRELUDE;
        let first = text.lines().count() + 1;
        for (number, check) in self.checks.iter().enumerate() {
            text += &check.code.replace('@', &format!("v{number}"));
            text.push('\n');
        }
        let output = compile(headers, Names::Symbols, &["-fsyntax-only"], &text);
        let mut refused = BTreeMap::new();
        for line in errors(&output).lines() {
            // FILE:LINE:COLUMN: error: MESSAGE
            let Some((place, message)) = line.split_once(": error: ") else {
                continue;
            };
            let number = place
                .strip_prefix("<stdin>:")
                .and_then(|n| n.split(':').next());
            let number = number.and_then(|number| number.parse::<usize>().ok()?.checked_sub(first));
            let Some(number) = number.filter(|number| *number < self.checks.len()) else {
                return Err(format!("{}: {line}", headers.name));
            };
            refused.entry(number).or_insert_with(|| message.to_owned());
        }
        if !output.status.success() && refused.is_empty() {
            return Err(broken(headers, &output));
        }
        for (number, message) in refused {
            let Check { kind, refused, .. } = &self.checks[number];
            let mut refused = refused.clone();
            // Both numbers stand in the message, as `equal<8, 4>`.
            let numbers = message
                .split_once("equal<")
                .and_then(|(_, rest)| rest.split_once('>'));
            if let Some((ours, theirs)) = numbers.and_then(|(n, _)| n.split_once(", ")) {
                if (ours, theirs) != ("1", "0") {
                    refused.ours = ours.into();
                    if refused.theirs.is_empty() || refused.theirs.parse::<i64>().is_ok() {
                        refused.theirs = theirs.into();
                    } else {
                        refused.theirs = format!("{theirs}, from {}", refused.theirs);
                    }
                }
            }
            self.found.differ.push((*kind, refused));
        }
        Ok(())
    }
}

/// Compares each `Since` of nccl with the facts. Those of cuda are compared with the headers alone.
pub fn since(ours: &Declarations, facts: &Facts) -> BTreeMap<Finding, Vec<String>> {
    let mut findings = BTreeMap::new();
    let mut compare = |item: &str, doc: &Since, of: &Since| {
        let expected = match facts.first.get(item) {
            Some(first) if first[..] <= OLDEST_KNOWN[..] => None,
            Some(first) => Some(facts.named(first)),
            None => of.clone(),
        };
        // What came with its type need not repeat the type's release.
        if *doc == expected || doc.is_none() && *of == expected {
            return;
        }
        let said = |since: &Since| since.clone().unwrap_or_else(|| "nothing".into());
        let theirs = if facts.first.contains_key(item) || of.is_some() {
            said(&expected)
        } else {
            "no release is known: tests/abi/headers.py --facts".into()
        };
        findings.insert(finding(item, &said(doc), &theirs), Vec::new());
    };
    let nccl = |library: &Library| *library == Library::Nccl;
    for function in ours.functions.iter().filter(|f| nccl(&f.library)) {
        compare(&function.name, &function.since, &None);
    }
    for record in ours.records.iter().filter(|r| nccl(&r.library)) {
        // decltype(type::field)
        let name = record.c.trim_start_matches("decltype(");
        let name = name.trim_end_matches(')').replace("::", ".");
        compare(&name, &record.since, &None);
        for field in &record.fields {
            compare(&format!("{name}.{}", field.c), &field.since, &record.since);
        }
    }
    for of in ours.enums.iter().filter(|e| nccl(&e.library)) {
        compare(&of.c, &of.since, &None);
        for value in &of.values {
            compare(&value.c, &value.since, &of.since);
        }
    }
    for alias in ours.aliases.iter().filter(|a| nccl(&a.library)) {
        compare(&alias.c, &alias.since, &None);
    }
    for constant in ours.constants.iter().filter(|c| nccl(&c.library)) {
        compare(&constant.c, &constant.since, &None);
    }
    findings
}

/// What is this old says nothing.
const OLDEST_KNOWN: [u32; 3] = [2, 3, 5];

impl Facts {
    /// As the docs name a release: without the patch number where it is the minor release's first.
    fn named(&self, first: &Release) -> String {
        let minor = &first[..2];
        let earlier = |wheel: &Release| wheel[..2] == *minor && wheel < first;
        let numbers = if self.wheels.iter().any(earlier) {
            first
        } else {
            minor
        };
        let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
        format!("NCCL {}", numbers.join("."))
    }
}

/// Without case and underscores.
fn fold(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

/// Whether `c` ends in the words of `rust`: `ncclUint8` does in `Uint8`, but not in `Int8`.
fn ends_in(c: &str, rust: &str) -> bool {
    c.char_indices().any(|(at, first)| {
        let before = &c[..at];
        let hump = first.is_uppercase() && !before.ends_with(char::is_uppercase);
        (before.ends_with('_') || hump) && fold(&c[at..]) == fold(rust)
    })
}

const PRELUDE: &str = "
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
template<class T> using self = T;
template<class, class> struct same;
template<class T> struct same<T, T> {};
template<long long, long long> struct equal;
template<long long N> struct equal<N, N> {};
template<class A, class B> constexpr bool stands_for = std::is_same_v<A, B>
    || sizeof(A) == sizeof(B) && alignof(A) == alignof(B) && (std::is_pointer_v<B>
        ? std::is_same_v<A, void*> || std::is_same_v<A, uint64_t>
        : std::is_integral_v<A> && std::is_signed_v<A> == std::is_signed_v<B>);
";

fn includes(headers: &Headers) -> String {
    let nccl = headers.nccl.as_ref().map_or("", |_| "#include <nccl.h>\n");
    format!("#include <cuda.h>\n{nccl}")
}

static IS_GCC: LazyLock<bool> = LazyLock::new(|| {
    let version = Command::new(compiler()).arg("--version").output();
    version.is_ok_and(|version| !String::from_utf8_lossy(&version.stdout).contains("clang"))
});

pub fn compiler() -> OsString {
    std::env::var_os("CXX").unwrap_or_else(|| "c++".into())
}

/// Runs the compiler on a text. Half-precision types are left out: their headers want more than the
/// toolkit's own, and nccl.h uses nothing of them.
fn compile(headers: &Headers, names: Names, arguments: &[&str], text: &str) -> Output {
    let mut command = Command::new(compiler());
    if headers.nccl.is_none() && matches!(names, Names::Symbols) {
        command.arg("-D__CUDA_API_VERSION_INTERNAL");
    }
    command.args(["-std=c++17", "-w", "-DNCCL_OS_LINUX"]);
    command.args(["-D__CUDA_FP16_H__", "-D__CUDA_BF16_H__", "-D__CUDA_FP8_H__"]);
    command.arg("-D__CUDA_BF16_TYPES_EXIST__");
    if *IS_GCC {
        // An error inside a macro is reported where the macro is used, as clang does anyway.
        command.arg("-ftrack-macro-expansion=0");
    }
    for folder in headers.nccl.iter().chain([&headers.cuda]) {
        command.arg("-I").arg(folder);
    }
    command.args(arguments).args(["-x", "c++", "-"]);
    command.env("LC_ALL", "C").stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the C++ compiler starts");
    let mut input = child.stdin.take().unwrap();
    input
        .write_all(text.as_bytes())
        .expect("the C++ compiler reads");
    drop(input);
    child.wait_with_output().expect("the C++ compiler ends")
}

/// That the headers themselves do not compile here.
fn broken(headers: &Headers, output: &Output) -> String {
    let errors = errors(output);
    let first = errors.lines().find(|line| line.contains("error"));
    format!(
        "{}: {}",
        headers.name,
        first.unwrap_or("the compiler fails")
    )
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
