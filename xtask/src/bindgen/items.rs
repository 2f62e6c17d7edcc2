//! Splits the output of bindgen into the files that are checked in. These contain the types, the
//! function signatures, the symbols to link with, and the layout assertions for one architecture.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote};
use syn::{
    ForeignItem, ForeignItemFn, Item,
    visit_mut::{VisitMut, visit_file_mut},
};

/// Functions that `verbs.h` declares, but that the library exports only to rdma-core's own tools
/// (`IBVERBS_PRIVATE_*`).
const PRIVATE: &[&str] = &["ibv_wr_opcode_str"];

pub(crate) struct Parts {
    pub(crate) types: String,
    pub(crate) functions: String,
    pub(crate) symbols: String,
    pub(crate) layout: String,
}

/// Splits the output of bindgen into its parts.
pub(crate) fn split(bindings: &str) -> Result<Parts> {
    let mut file = syn::parse_file(bindings).context("bindgen's output is not Rust")?;
    visit_file_mut(&mut Renumber::default(), &mut file);
    let (mut types, mut layout) = (TokenStream::new(), TokenStream::new());
    let (mut functions, mut symbols) = (TokenStream::new(), TokenStream::new());
    for item in file.items {
        match item {
            Item::ForeignMod(block) => {
                for item in block.items {
                    if let ForeignItem::Fn(function) = item
                        && PRIVATE.iter().all(|private| function.sig.ident != private)
                    {
                        functions.extend(signature(&function));
                        function.to_tokens(&mut symbols);
                    }
                }
            }
            Item::Const(constant) if constant.ident == "_" => constant.to_tokens(&mut layout),
            item => item.to_tokens(&mut types),
        }
    }
    Ok(Parts {
        types: quote!(#![allow(unsafe_code)] use crate::os::*; #types).to_string(),
        functions: quote!(use super::verbs::*; use crate::os::*; #functions).to_string(),
        symbols: quote! {
            #![allow(unsafe_code)]
            use super::verbs::*;
            use crate::os::*;
            unsafe extern "C" { #symbols }
        }
        .to_string(),
        layout: quote!(use super::verbs::*; #layout).to_string(),
    })
}

/// Returns `type NAME = unsafe extern "C" fn(…)`, which names the signature of a function without
/// needing its symbol.
fn signature(function: &ForeignItemFn) -> TokenStream {
    let name = &function.sig.ident;
    let (inputs, output) = (&function.sig.inputs, &function.sig.output);
    quote!(pub type #name = unsafe extern "C" fn(#inputs) #output;)
}

/// Numbers the anonymous enums in the order in which they appear. bindgen's own numbers also count
/// those in the C library's headers, which differ between machines.
#[derive(Default)]
struct Renumber(HashMap<String, usize>);

impl VisitMut for Renumber {
    fn visit_ident_mut(&mut self, ident: &mut Ident) {
        let name = ident.to_string();
        if name.starts_with("_bindgen_ty_") {
            let next = self.0.len() + 1;
            let number = *self.0.entry(name).or_insert(next);
            *ident = Ident::new(&format!("_bindgen_ty_{number}"), Span::call_site());
        }
    }
}
