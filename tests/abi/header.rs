//! The names that a C header brings, read from the preprocessor's output.
//!
//! Types and values are the C++ compiler's business; this only has to know what there is, in which
//! order, and how the header writes it.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Header {
    pub functions: BTreeMap<String, Function>,
    /// Structs and unions by name; an unnamed one inside `T` is called `decltype(T::field)`.
    pub records: BTreeMap<String, Vec<Named>>,
    /// The enumerators of each enum.
    pub enums: BTreeMap<String, Vec<String>>,
    /// All enumerators, as the header writes them.
    pub enumerators: BTreeMap<String, String>,
    /// Macros with a value, and the value.
    pub macros: BTreeMap<String, String>,
    pub types: BTreeSet<String>,
}

#[derive(Clone)]
pub struct Function {
    /// The whole declaration.
    pub text: String,
    pub parameters: Vec<Named>,
}

/// A parameter or a field.
#[derive(Clone)]
pub struct Named {
    pub name: String,
    /// Type and name.
    pub text: String,
}

impl Header {
    /// Reads the output of `c++ -E -dD`, as far as it comes from a file called `file`.
    pub fn read(preprocessed: &str, file: &str) -> Self {
        let mut header = Self::default();
        let mut text = String::new();
        let mut inside = false;
        for line in preprocessed.lines() {
            if let Some(marker) = line.strip_prefix("# ") {
                inside = marker.split('"').nth(1).is_some_and(|path| {
                    path.strip_suffix(file)
                        .is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
                });
            } else if !inside {
            } else if let Some(define) = line.strip_prefix("#define ") {
                let end = define.find([' ', '(']).unwrap_or(define.len());
                let value = define[end..].trim();
                if !value.is_empty() {
                    header.macros.insert(define[..end].into(), value.into());
                }
            } else if !line.starts_with('#') {
                text.push_str(line);
                text.push('\n');
            }
        }
        let tokens = without_attributes(&tokens(&text));
        for statement in split(&tokens, ";") {
            header.statement(&statement);
        }
        header
    }

    fn statement(&mut self, tokens: &[&str]) {
        if tokens.first() != Some(&"typedef") {
            if let (Some(open), Some(&")")) = (tokens.iter().position(|t| *t == "("), tokens.last())
            {
                let parameters = split(&tokens[open + 1..tokens.len() - 1], ",")
                    .iter()
                    .filter(|parameter| parameter[..] != ["void"])
                    .map(|parameter| named(parameter))
                    .collect();
                let text = join(tokens);
                self.functions
                    .insert(tokens[open - 1].into(), Function { text, parameters });
            }
            return;
        }
        let Some(open) = tokens.iter().position(|t| *t == "{") else {
            // `typedef T (*name)(...)`, or the name comes last.
            let pointer = tokens.windows(3).find(|w| w[0] == "(" && w[1] == "*");
            let name = pointer.map_or(tokens[tokens.len() - 1], |w| w[2]);
            self.types.insert(name.into());
            if let ["typedef", of, name] = tokens {
                if let Some(fields) = self.records.get(*of).cloned() {
                    self.records.insert((*name).into(), fields);
                }
            }
            return;
        };
        let close = tokens.iter().rposition(|t| *t == "}").unwrap();
        let name = tokens[tokens.len() - 1];
        self.types.insert(name.into());
        if tokens[1] == "enum" {
            let mut names = Vec::new();
            for enumerator in split(&tokens[open + 1..close], ",") {
                self.enumerators
                    .insert(enumerator[0].into(), join(&enumerator));
                names.push(enumerator[0].to_owned());
            }
            self.enums.insert(name.into(), names);
        } else {
            self.record(name, &tokens[open + 1..close]);
        }
    }

    fn record(&mut self, name: &str, body: &[&str]) {
        let mut fields = Vec::new();
        for field in split(body, ";") {
            let field = if let Some(open) = field.iter().position(|t| *t == "{") {
                let close = field.iter().rposition(|t| *t == "}").unwrap();
                let inner = format!("decltype({name}::{})", field[field.len() - 1]);
                self.record(&inner, &field[open + 1..close]);
                [&field[..open], &["{…}"], &field[close + 1..]].concat()
            } else {
                field
            };
            fields.push(named(&field));
        }
        self.records.insert(name.into(), fields);
    }
}

fn named(tokens: &[&str]) -> Named {
    let array = tokens.iter().position(|t| *t == "[");
    let end = array.unwrap_or(tokens.len());
    Named {
        name: tokens[end - 1].into(),
        text: join(tokens),
    }
}

/// Words, strings, and signs one by one.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if first == '"' {
            rest[1..].find('"').map_or(rest.len(), |end| end + 2)
        } else if word(first) {
            rest.find(|c| !word(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// Leaves out `__attribute__((…))`, and the braces of `extern "C" { … }`.
fn without_attributes<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut kept = Vec::new();
    let mut at = 0;
    let mut depth = 0;
    while at < tokens.len() {
        match tokens[at] {
            "__attribute__" => {
                let mut open = 0;
                loop {
                    at += 1;
                    open += match tokens[at] {
                        "(" => 1,
                        ")" => -1,
                        _ => 0,
                    };
                    if open == 0 {
                        break;
                    }
                }
            }
            "extern" if tokens[at + 1..].starts_with(&["\"C\"", "{"]) => at += 2,
            "}" if depth == 0 => {}
            token => {
                depth += match token {
                    "{" => 1,
                    "}" => -1,
                    _ => 0,
                };
                kept.push(token);
            }
        }
        at += 1;
    }
    kept
}

/// The non-empty parts between `separator`, as far as it stands in no brackets.
fn split<'a>(tokens: &[&'a str], separator: &str) -> Vec<Vec<&'a str>> {
    let mut parts = vec![Vec::new()];
    let mut depth = 0;
    for token in tokens {
        match *token {
            "(" | "{" | "[" => depth += 1,
            ")" | "}" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 && *token == separator {
            parts.push(Vec::new());
        } else {
            parts.last_mut().unwrap().push(*token);
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

fn join(tokens: &[&str]) -> String {
    let mut text = String::new();
    let mut glue = true;
    for token in tokens {
        if !glue && !matches!(*token, "," | ")" | "*" | "[" | "]" | "(" | "<" | ">") {
            text.push(' ');
        }
        text.push_str(token);
        glue = matches!(*token, "(" | "[" | "-" | "<" | ">");
    }
    text
}
