//! Reports checked against the schema.

use serde_json::Value;

const SCHEMA: &str = include_str!("../../../perf.schema.json");

/// Returns the report in the text, and panics unless it matches the schema.
pub(crate) fn valid_report(text: &str) -> Value {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let report: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}"));
    if let Err(error) = check(&report, &schema, &schema) {
        panic!("{error}: {report:#}");
    }
    report
}

/// Checks the keywords that the schema uses. Any other keyword fails.
fn check(value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
    let fail = |what: String| Err(format!("{value} is not {what}"));
    for (keyword, rule) in schema.as_object().unwrap() {
        match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" => {}
            "type" => {
                let fits = match rule.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "integer" => value.is_u64() || value.is_i64(),
                    "number" => value.is_number(),
                    "null" => value.is_null(),
                    other => panic!("unknown type {other}"),
                };
                if !fits {
                    return fail(format!("of type {rule}"));
                }
            }
            "const" if value != rule => return fail(rule.to_string()),
            "enum" if !rule.as_array().unwrap().contains(value) => return fail(rule.to_string()),
            "const" | "enum" => {}
            "minimum" => {
                if value.as_f64().unwrap() < rule.as_f64().unwrap() {
                    return fail(format!("at least {rule}"));
                }
            }
            "required" => {
                for name in rule.as_array().unwrap() {
                    if value.get(name.as_str().unwrap()).is_none() {
                        return fail(format!("an object with {name}"));
                    }
                }
            }
            "properties" => {
                for (name, value) in value.as_object().unwrap() {
                    match rule.get(name) {
                        Some(schema) => check(value, schema, root)?,
                        None => return Err(format!("unknown property {name}")),
                    }
                }
            }
            // `properties` refuses the others.
            "additionalProperties" => {
                assert_eq!((rule, schema.get("properties").is_some()), (&false.into(), true))
            }
            "items" => {
                value.as_array().unwrap().iter().try_for_each(|item| check(item, rule, root))?
            }
            "minItems" | "maxItems" => {
                let (count, limit) =
                    (value.as_array().unwrap().len() as u64, rule.as_u64().unwrap());
                if (keyword == "minItems" && count < limit)
                    || (keyword == "maxItems" && count > limit)
                {
                    return fail(format!("an array with {keyword} {limit}"));
                }
            }
            "anyOf" => {
                let schemas = rule.as_array().unwrap();
                if !schemas.iter().any(|schema| check(value, schema, root).is_ok()) {
                    return fail("of any of the schemas".to_owned());
                }
            }
            "$ref" => {
                let pointer = rule.as_str().unwrap().strip_prefix('#').unwrap();
                check(value, root.pointer(pointer).unwrap(), root)?;
            }
            other => panic!("the schema uses the keyword {other}, which is not checked here"),
        }
    }
    Ok(())
}

#[test]
fn reports_that_differ_from_the_schema_are_refused() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let good = serde_json::json!({
        "version": 1, "rdmatool": "0.1.0", "time": 1,
        "machine": { "processor": "x", "processors": 2, "kernel": "6" },
        "device": { "name": "soft0", "provider": "soft", "firmware": "", "mtu": 4096 },
        "rows": [{
            "measure": "bw", "operation": "write", "bytes": 8, "queue_pairs": 1, "depth": 1, "mode": "", "operations": 9,
            "latency": null, "blocks": [1.5]
        }]
    });
    assert_eq!(check(&good, &schema, &schema), Ok(()));
    let wrong = [
        ("/version", 2.into()),
        ("/time", (-1).into()),
        ("/device/mtu", 1000.into()),
        ("/rows", serde_json::json!([])),
        ("/rows/0/operation", "fly".into()),
        ("/rows/0/blocks", serde_json::json!([-1])),
        ("/rows/0/latency", serde_json::json!({ "min": 1 })),
        (
            "/machine",
            serde_json::json!({ "processor": "x", "processors": 2, "kernel": "6", "more": 1 }),
        ),
    ];
    for (pointer, value) in wrong {
        let mut report = good.clone();
        *report.pointer_mut(pointer).unwrap() = value;
        assert!(check(&report, &schema, &schema).is_err(), "{pointer}");
    }
}
