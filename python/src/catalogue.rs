//! The policies, workloads and machines, with their descriptions.

use pyo3::prelude::*;
use serde_json::{Value, json};
use terrace_core::parameters::ParameterDoc;
use terrace_core::policies::REGISTRY;
use terrace_hardware::presets;

use crate::errors::refused;

fn loaded<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (value.to_string(),))
}

fn parameter(p: &ParameterDoc) -> Value {
    json!({ "name": p.name, "default": p.default, "meaning": p.meaning })
}

/// The policies: name, summary, source and parameters of each.
#[pyfunction]
pub fn policies(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let kind = |k: &terrace_core::policy::PolicyKind| {
        let parameters: Vec<_> = k.parameters.iter().map(parameter).collect();
        json!({
            "name": k.name, "summary": k.summary, "advice": k.advice, "source": k.source,
            "parameters": parameters,
        })
    };
    loaded(py, &REGISTRY.iter().map(kind).collect())
}

/// The kinds of workload: name, summary, what each stands for, and parameters.
#[pyfunction]
pub fn workloads(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let kind = |k: terrace_workloads::kinds::WorkloadKind| {
        let parameters: Vec<_> = k.parameters().into_iter().map(parameter).collect();
        json!({
            "name": k.name, "summary": k.summary, "stands_for": k.stands_for,
            "machines": k.machines(), "generator": k.generator.is_some(), "parameters": parameters,
        })
    };
    loaded(py, &terrace_workloads::kinds::all().into_iter().map(kind).collect())
}

/// The machines of trace-driven simulation: name and configuration, every key.
#[pyfunction]
pub fn machines(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let mut all = Vec::new();
    for name in presets::names() {
        let machine = presets::by_name(name).map_err(refused)?;
        let configuration = toml::Value::try_from(&machine).map_err(refused)?;
        all.push(json!({
            "name": name, "description": machine.description, "configuration": configuration,
        }));
    }
    loaded(py, &Value::Array(all))
}
