//! The crate's declarations, read from its source files and put in the words of C.

use std::collections::BTreeMap;
use std::path::Path;

use syn::parse::{Parse, ParseStream};
use syn::{
    Attribute, BinOp, Expr, ExprLit, Fields, FnArg, ForeignItemFn, GenericArgument, Ident,
    ImplItem, Item, Lit, LitStr, Member, Meta, Pat, PathArguments, PointerMutability, ReturnType,
    Stmt, Token, Type, UnOp, Visibility,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    Nccl,
    Cuda,
}

#[derive(Default)]
pub struct Declarations {
    pub functions: Vec<Function>,
    pub records: Vec<Record>,
    pub enums: Vec<Enum>,
    pub constants: Vec<Constant>,
    pub aliases: Vec<Alias>,
    /// C names that an ordinary function stands for, such as `NCCL_VERSION`.
    pub macros: Vec<String>,
}

pub struct Function {
    pub library: Library,
    pub name: String,
    pub since: Since,
    pub parameters: Vec<(String, Kind)>,
    pub output: Kind,
}

/// A struct or a union.
pub struct Record {
    pub library: Library,
    pub rust: String,
    pub c: String,
    pub is_union: bool,
    pub since: Since,
    /// The public ones. None where only pointers to the type are ever used.
    pub fields: Vec<Field>,
    /// The macro that the constructor stands for, and its value of each field.
    pub initializer: Option<(String, Vec<(String, Words)>)>,
}

pub struct Field {
    pub rust: String,
    pub c: String,
    pub since: Since,
    pub kind: Kind,
}

pub struct Enum {
    pub library: Library,
    pub c: String,
    pub since: Since,
    pub values: Vec<Constant>,
}

pub struct Constant {
    pub library: Library,
    pub rust: String,
    pub c: String,
    pub since: Since,
    pub value: Words,
}

pub struct Alias {
    pub library: Library,
    pub c: String,
    pub since: Since,
    pub kind: Kind,
}

/// A type.
pub struct Kind {
    pub c: Words,
    /// The name in it, without pointers.
    pub rust: String,
}

/// A type or a value in C++, or why there is none.
pub type Words = Result<String, String>;

/// What a doc says after `Since`, such as `NCCL 2.27`.
pub type Since = Option<String>;

impl Declarations {
    /// Reads the files of `src/nccl` and `src/cuda` below `root`. `table` is the C type of the Rust
    /// types that the files do not declare themselves.
    pub fn read(root: &Path, table: &[(&str, &str)]) -> Self {
        let mut items = Vec::new();
        for (library, folder) in [(Library::Nccl, "nccl"), (Library::Cuda, "cuda")] {
            let folder = root.join("src").join(folder);
            let entries = std::fs::read_dir(&folder)
                .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            files.sort();
            for path in files {
                let text = std::fs::read_to_string(&path).unwrap();
                let file = syn::parse_file(&text)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                items.extend(file.items.into_iter().map(|item| (library, item)));
            }
        }
        let mut names = Names::default();
        for (rust, c) in table {
            names.types.insert((*rust).into(), (*c).into());
        }
        for (_, item) in &items {
            names.learn(item);
        }
        let mut declarations = Self::default();
        for (library, item) in &items {
            declarations.item(*library, item, &names);
        }
        for (library, item) in &items {
            declarations.associated(*library, item, &names);
        }
        declarations
    }

    fn item(&mut self, library: Library, item: &Item, names: &Names) {
        match item {
            Item::ForeignMod(_) => panic!("an extern block outside of bind!"),
            Item::Macro(item) if item.mac.path.is_ident("bind") => {
                let Bound(functions) = item.mac.parse_body().unwrap();
                let functions = functions.iter();
                self.functions
                    .extend(functions.map(|function| names.function(library, function)));
            }
            Item::Macro(item) if item.mac.path.is_ident("c_enum") => {
                let item: CEnum = item.mac.parse_body().unwrap();
                // What only this crate returns has no name in C.
                let named = item.values.iter().filter(|value| !value.c.is_empty());
                let values = named.map(|value| Constant {
                    library,
                    rust: value.rust.clone(),
                    c: value.c.clone(),
                    since: since(&value.attributes),
                    value: names.value(&value.value, &item.rust),
                });
                self.enums.push(Enum {
                    library,
                    since: since(&item.attributes),
                    values: values.collect(),
                    c: item.c,
                });
            }
            Item::Struct(item) if is_repr_c(&item.attrs) => {
                let fields = names.fields(&item.fields);
                self.record(library, &item.ident, &item.attrs, false, fields, names);
            }
            Item::Union(item) if is_repr_c(&item.attrs) => {
                let fields = names.fields(&Fields::Named(item.fields.clone()));
                self.record(library, &item.ident, &item.attrs, true, fields, names);
            }
            Item::Type(item) if is_public(&item.vis) => {
                if let Some(c) = alias(&item.attrs) {
                    self.aliases.push(Alias {
                        library,
                        c,
                        since: since(&item.attrs),
                        kind: names.kind(&item.ty),
                    });
                }
            }
            Item::Const(item) if is_public(&item.vis) => {
                let rust = item.ident.to_string();
                if rust.starts_with("NCCL_") || rust.starts_with("CU") {
                    self.constants.push(Constant {
                        library,
                        c: rust.clone(),
                        rust,
                        since: since(&item.attrs),
                        value: names.value(&item.expr, ""),
                    });
                }
            }
            Item::Fn(item) if is_public(&item.vis) => {
                let name = alias(&item.attrs).filter(|name| name.starts_with("NCCL_"));
                self.macros.extend(name);
            }
            _ => {}
        }
    }

    fn record(
        &mut self,
        library: Library,
        name: &Ident,
        attributes: &[Attribute],
        is_union: bool,
        fields: Vec<Field>,
        names: &Names,
    ) {
        let rust = name.to_string();
        self.records.push(Record {
            library,
            c: names.types[&rust].clone(),
            rust,
            is_union,
            since: since(attributes),
            fields,
            initializer: None,
        });
    }

    /// Constants beside an enum, and the constructor of a struct.
    fn associated(&mut self, library: Library, item: &Item, names: &Names) {
        let Item::Impl(block) = item else { return };
        let owner = last_name(&block.self_ty);
        let Some(c_owner) = names.types.get(&owner) else {
            return;
        };
        for item in &block.items {
            match item {
                ImplItem::Const(item) => {
                    let place = self.enums.iter_mut().find(|e| e.c == *c_owner);
                    if let (Some(place), Some(c)) = (place, alias(&item.attrs)) {
                        place.values.push(Constant {
                            library,
                            rust: item.ident.to_string(),
                            c,
                            since: since(&item.attrs),
                            value: names.value(&item.expr, &owner),
                        });
                    }
                }
                ImplItem::Fn(item) => {
                    let place = self.records.iter_mut().find(|r| r.rust == owner);
                    let (Some(place), Some(c)) = (place, alias(&item.attrs)) else {
                        continue;
                    };
                    let [Stmt::Expr(Expr::Struct(body), None)] = &item.block.stmts[..] else {
                        panic!("{c} is not made by a plain struct expression");
                    };
                    assert!(body.rest.is_none(), "{c} is not made of all its fields");
                    let mut values = Vec::new();
                    for field in &body.fields {
                        let Member::Named(name) = &field.member else {
                            panic!("a field without a name in {c}");
                        };
                        let field_c = place.fields.iter().find(|f| *name == f.rust);
                        let field_c = field_c.map_or(name.to_string(), |field| field.c.clone());
                        values.push((field_c, names.value(&field.expr, &owner)));
                    }
                    place.initializer = Some((c, values));
                }
                _ => {}
            }
        }
    }
}

/// What the Rust names stand for.
#[derive(Default)]
struct Names {
    types: BTreeMap<String, String>,
    /// Constants, those of a type as `Type::NAME`.
    values: BTreeMap<String, Expr>,
}

impl Names {
    fn learn(&mut self, item: &Item) {
        match item {
            Item::Macro(item) if item.mac.path.is_ident("c_enum") => {
                let item: CEnum = item.mac.parse_body().unwrap();
                for value in item.values {
                    let name = format!("{}::{}", item.rust, value.rust);
                    self.values.insert(name, value.value);
                }
                self.types.insert(item.rust, item.c);
            }
            Item::Struct(item) if is_repr_c(&item.attrs) => self.named(&item.ident, &item.attrs),
            Item::Union(item) if is_repr_c(&item.attrs) => self.named(&item.ident, &item.attrs),
            Item::Type(item) if is_public(&item.vis) && alias(&item.attrs).is_some() => {
                self.named(&item.ident, &item.attrs);
            }
            Item::Const(item) => {
                let value = (*item.expr).clone();
                self.values.insert(item.ident.to_string(), value);
            }
            Item::Impl(block) => {
                for item in &block.items {
                    if let ImplItem::Const(item) = item {
                        let name = format!("{}::{}", last_name(&block.self_ty), item.ident);
                        self.values.insert(name, item.expr.clone());
                    }
                }
            }
            _ => {}
        }
    }

    fn named(&mut self, rust: &Ident, attributes: &[Attribute]) {
        let rust = rust.to_string();
        match alias(attributes) {
            Some(c) => _ = self.types.insert(rust, c),
            None => _ = self.types.entry(rust.clone()).or_insert(rust),
        }
    }

    fn function(&self, library: Library, function: &ForeignItemFn) -> Function {
        let parameter = |input: &FnArg| {
            let FnArg::Typed(input) = input else {
                panic!("a receiver in a C function");
            };
            let Pat::Ident(name) = &*input.pat else {
                panic!("a parameter without a name");
            };
            (name.ident.to_string(), self.kind(&input.ty))
        };
        let output = match &function.sig.output {
            ReturnType::Default => Kind {
                c: Ok("void".into()),
                rust: String::new(),
            },
            ReturnType::Type(_, kind) => self.kind(kind),
        };
        Function {
            library,
            name: function.sig.ident.to_string(),
            since: since(&function.attrs),
            parameters: function.sig.inputs.iter().map(parameter).collect(),
            output,
        }
    }

    fn fields(&self, fields: &Fields) -> Vec<Field> {
        let public = fields.iter().filter(|field| is_public(&field.vis));
        let read = public.map(|field| {
            let rust = field.ident.as_ref().expect("a named field").to_string();
            Field {
                c: alias(&field.attrs).unwrap_or(rust.clone()),
                rust,
                since: since(&field.attrs),
                kind: self.kind(&field.ty),
            }
        });
        read.collect()
    }

    fn kind(&self, kind: &Type) -> Kind {
        let mut inner = kind;
        while let Type::Ptr(pointer) = inner {
            inner = &pointer.elem;
        }
        Kind {
            c: self.c_type(kind),
            rust: last_name(inner),
        }
    }

    /// The C type, in words that can stand as a template's argument.
    fn c_type(&self, kind: &Type) -> Words {
        match kind {
            Type::Ptr(pointer) => {
                let inner = self.c_type(&pointer.elem)?;
                Ok(match pointer.mutability {
                    PointerMutability::Mut(_) => format!("{inner}*"),
                    PointerMutability::Const(_) if inner.ends_with('*') => {
                        format!("{inner} const*")
                    }
                    PointerMutability::Const(_) => format!("const {inner}*"),
                })
            }
            Type::Array(array) => {
                let length = self.value(&array.len, "")?;
                Ok(format!("{}[{length}]", self.c_type(&array.elem)?))
            }
            Type::FnPtr(function) => {
                let abi = function.abi.as_ref().and_then(|abi| abi.name.as_ref());
                if abi.is_none_or(|abi| abi.value() != "C") {
                    return Err("a function pointer that is not extern \"C\"".into());
                }
                let inputs = function.inputs.iter().map(|input| self.c_type(&input.ty));
                let inputs = inputs.collect::<Result<Vec<_>, _>>()?.join(", ");
                let output = match &function.output {
                    ReturnType::Default => "void".into(),
                    ReturnType::Type(_, kind) => self.c_type(kind)?,
                };
                Ok(format!("{output}(*)({inputs})"))
            }
            Type::Path(path) => {
                let last = path.path.segments.last().unwrap();
                // A function pointer that may be null.
                if let PathArguments::AngleBracketed(inner) = &last.arguments {
                    if let Some(GenericArgument::Type(inner @ Type::FnPtr(_))) = inner.args.first()
                    {
                        return self.c_type(inner);
                    }
                }
                let name = last.ident.to_string();
                let found = self.types.get(&name).cloned();
                found.ok_or_else(|| format!("{name}, a type without a known C type"))
            }
            _ => Err("a type that C has not".into()),
        }
    }

    /// A constant expression; `this` is what `Self` stands for.
    fn value(&self, value: &Expr, this: &str) -> Words {
        let unknown = || Err("an expression that this test cannot read".to_owned());
        match value {
            Expr::Lit(ExprLit { lit, .. }) => match lit {
                Lit::Int(number) => Ok(number.base10_digits().into()),
                Lit::Float(number) => Ok(number.base10_digits().into()),
                Lit::Str(text) => Ok(format!("{:?}", text.value())),
                _ => unknown(),
            },
            Expr::Paren(inner) => self.value(&inner.expr, this),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => {
                Ok(format!("-{}", self.value(&unary.expr, this)?))
            }
            Expr::Binary(binary) => {
                let sign = match binary.op {
                    BinOp::Shl(_) => "<<",
                    BinOp::BitOr(_) => "|",
                    _ => return unknown(),
                };
                let left = self.value(&binary.left, this)?;
                Ok(format!(
                    "({left} {sign} {})",
                    self.value(&binary.right, this)?
                ))
            }
            Expr::Cast(cast) => {
                let kind = self.c_type(&cast.ty)?;
                Ok(format!("({kind})({})", self.value(&cast.expr, this)?))
            }
            // The number in an enum's value.
            Expr::Field(field) => self.value(&field.base, this),
            Expr::Call(call) => {
                let Expr::Path(function) = &*call.func else {
                    return unknown();
                };
                let arguments = call.args.iter().map(|argument| self.value(argument, this));
                let arguments = arguments.collect::<Result<Vec<_>, _>>()?.join(", ");
                match &*function.path.segments.last().unwrap().ident.to_string() {
                    "Self" | "without_provenance_mut" => Ok(arguments),
                    "null" | "null_mut" => Ok("nullptr".into()),
                    "size_of" => Ok(format!("sizeof({})", self.types[this])),
                    "version_code" => Ok(format!("NCCL_VERSION({arguments})")),
                    _ => unknown(),
                }
            }
            Expr::Path(path) => {
                let segments = path.path.segments.iter().map(|s| s.ident.to_string());
                let segments: Vec<_> = segments.collect();
                let name = match &segments[..] {
                    [.., owner, name] if owner == "Self" => format!("{this}::{name}"),
                    [.., owner, name] => format!("{owner}::{name}"),
                    _ => segments.concat(),
                };
                match &*name {
                    "i32::MIN" => Ok("INT_MIN".into()),
                    "i32::MAX" => Ok("INT_MAX".into()),
                    _ => match self.values.get(&name) {
                        Some(value) => self.value(value, this),
                        None => unknown(),
                    },
                }
            }
            _ => unknown(),
        }
    }
}

/// The body of `bind!`: the library's name, then functions.
struct Bound(Vec<ForeignItemFn>);

impl Parse for Bound {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let _library: (Ident, Ident) = (input.parse()?, input.parse()?);
        input.parse::<Token![;]>()?;
        let mut functions = Vec::new();
        while !input.is_empty() {
            functions.push(input.parse()?);
        }
        Ok(Self(functions))
    }
}

/// The body of `c_enum!`.
struct CEnum {
    attributes: Vec<Attribute>,
    c: String,
    rust: String,
    values: Vec<CValue>,
}

struct CValue {
    attributes: Vec<Attribute>,
    c: String,
    rust: String,
    value: Expr,
}

impl Parse for CEnum {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        input.parse::<Token![pub]>()?;
        input.parse::<Token![enum]>()?;
        let (c, rust) = renamed(input)?;
        let body;
        syn::braced!(body in input);
        let values = body.parse_terminated(CValue::parse, Token![,])?;
        Ok(Self {
            attributes,
            c,
            rust,
            values: values.into_iter().collect(),
        })
    }
}

impl Parse for CValue {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let (c, rust) = if input.peek(LitStr) {
            renamed(input)?
        } else {
            (String::new(), input.parse::<Ident>()?.to_string())
        };
        input.parse::<Token![=]>()?;
        let value = input.parse()?;
        Ok(Self {
            attributes,
            c,
            rust,
            value,
        })
    }
}

/// `"ncclFloat32" as Float32`
fn renamed(input: ParseStream) -> syn::Result<(String, String)> {
    let c: LitStr = input.parse()?;
    input.parse::<Token![as]>()?;
    let rust: Ident = input.parse()?;
    Ok((c.value(), rust.to_string()))
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_repr_c(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let argument = attribute.parse_args::<Ident>();
        attribute.path().is_ident("repr") && argument.is_ok_and(|argument| argument == "C")
    })
}

/// The last name of a path; empty for a type of another form.
fn last_name(kind: &Type) -> String {
    match kind {
        Type::Path(path) => path.path.segments.last().unwrap().ident.to_string(),
        _ => String::new(),
    }
}

/// The first name given by `#[doc(alias = "…")]`: the C name.
fn alias(attributes: &[Attribute]) -> Option<String> {
    let mut found = None;
    for attribute in attributes.iter().filter(|a| a.path().is_ident("doc")) {
        // Fails on `#[doc = "…"]` and `#[doc(hidden)]`, which name nothing.
        let _ = attribute.parse_nested_meta(|meta| {
            let name: LitStr = meta.value()?.parse()?;
            if meta.path.is_ident("alias") && found.is_none() {
                found = Some(name.value());
            }
            Ok(())
        });
    }
    found
}

/// The release that stands in `Since NCCL 2.x.` or `Since CUDA 12.x.`, the last paragraph of a doc. A
/// line that stands elsewhere, or reads otherwise, is given whole, so that it equals no release.
fn since(attributes: &[Attribute]) -> Since {
    let mut lines = Vec::new();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("doc")) {
        if let Meta::NameValue(doc) = &attribute.meta {
            if let Expr::Lit(ExprLit {
                lit: Lit::Str(line),
                ..
            }) = &doc.value
            {
                lines.push(line.value().trim().to_owned());
            }
        }
    }
    let place = lines.iter().position(|line| line.starts_with("Since "))?;
    let last = place + 1 == lines.len() && (place == 0 || lines[place - 1].is_empty());
    let release = lines[place]
        .strip_prefix("Since ")
        .and_then(|rest| rest.strip_suffix('.'));
    Some(release.filter(|_| last).unwrap_or(&lines[place]).to_owned())
}
