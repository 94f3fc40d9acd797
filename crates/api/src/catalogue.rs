//! Accelerator classes that are known without an object.
//!
//! ```text
//!   CATALOGUE row ──spec()──▶ AcceleratorClassSpec; an AcceleratorClass object of the same name replaces it
//! ```
//!
//! Sources: product names as GPU feature discovery writes them (NVIDIA's device plugin and GPU operator), memory and
//! multiprocessors from NVIDIA's data sheets, nodes per NVLink domain from the NVL72 documentation. Prices differ by
//! contract and have no place here.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::accelerator_class::{AcceleratorClassSpec, MigGrid, MigProfile, NVIDIA_GPU, PRODUCT_LABEL};

/// One kind of card.
struct Row {
    name: &'static str,
    products: &'static [&'static str],
    memory: &'static str,
    compute_units: u32,
    gpus_per_node: u32,
    nvlink_nodes: u32,
    grid: Grid,
}

/// Names of a card's MIG profiles.
#[derive(Clone, Copy)]
enum Grid {
    /// It has none.
    None,
    /// Seven compute and eight memory slices; names of 1g, 1g with double memory, 2g, 3g, 4g, 7g.
    Eight([&'static str; 6]),
    /// Four compute and four memory slices (A30).
    Four([&'static str; 3]),
    /// Four compute and twelve memory slices (RTX PRO 6000).
    Twelve([&'static str; 3]),
}

const H100_80: [&str; 6] = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];

/// The cards. A beginning that another row spells out further must not swallow it: see the test.
const CATALOGUE: &[Row] = &[
    Row {
        name: "a100",
        products: &[
            "NVIDIA-A100-SXM4-80GB",
            "NVIDIA-A100-SXM-80GB",
            "NVIDIA-A100-80GB-*",
            "NVIDIA-A100-PCIE-80GB",
        ],
        memory: "80Gi",
        compute_units: 108,
        gpus_per_node: 8,
        nvlink_nodes: 1,
        grid: Grid::Eight(["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
    },
    Row {
        name: "a100-40",
        products: &[
            "NVIDIA-A100-SXM4-40GB",
            "NVIDIA-A100-SXM-40GB",
            "NVIDIA-A100-PCIE-40GB",
            "A100-SXM4-40GB",
            "A100-PCIE-40GB",
        ],
        memory: "40Gi",
        compute_units: 108,
        gpus_per_node: 8,
        nvlink_nodes: 1,
        grid: Grid::Eight(["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]),
    },
    Row {
        name: "a30",
        products: &["NVIDIA-A30*"],
        memory: "24Gi",
        compute_units: 56,
        gpus_per_node: 4,
        nvlink_nodes: 1,
        grid: Grid::Four(["1g.6gb", "2g.12gb", "4g.24gb"]),
    },
    Row {
        name: "h100",
        products: &["NVIDIA-H100-80GB-HBM3*", "NVIDIA-H100-PCIe", "NVIDIA-H100-SXM5-80GB"],
        memory: "80Gi",
        compute_units: 132,
        gpus_per_node: 8,
        nvlink_nodes: 1,
        grid: Grid::Eight(H100_80),
    },
    Row {
        name: "h100-nvl",
        products: &["NVIDIA-H100-NVL"],
        memory: "94Gi",
        compute_units: 132,
        gpus_per_node: 8,
        nvlink_nodes: 1,
        grid: Grid::Eight(["1g.12gb", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"]),
    },
    Row {
        name: "gh200",
        products: &["NVIDIA-GH200-480GB"],
        memory: "96Gi",
        compute_units: 132,
        gpus_per_node: 1,
        nvlink_nodes: 1,
        grid: Grid::Eight(["1g.12gb", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"]),
    },
    Row {
        name: "h200",
        products: &["NVIDIA-H200*"],
        memory: "141Gi",
        compute_units: 132,
        gpus_per_node: 8,
        nvlink_nodes: 1,
        grid: Grid::Eight(["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]),
    },
    Row {
        name: "b200",
        products: &["NVIDIA-B200*"],
        memory: "180Gi",
        compute_units: 148,
        gpus_per_node: 8,
        nvlink_nodes: 1,
        grid: Grid::Eight(["1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"]),
    },
    Row {
        name: "b300",
        products: &["NVIDIA-B300*"],
        memory: "270Gi",
        compute_units: 148,
        gpus_per_node: 8,
        nvlink_nodes: 1,
        grid: Grid::None,
    },
    Row {
        name: "gb200",
        products: &["NVIDIA-GB200*"],
        memory: "186Gi",
        compute_units: 148,
        gpus_per_node: 4,
        nvlink_nodes: 18,
        grid: Grid::Eight(["1g.23gb", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb"]),
    },
    Row {
        name: "gb300",
        products: &["NVIDIA-GB300*"],
        memory: "278Gi",
        compute_units: 148,
        gpus_per_node: 4,
        nvlink_nodes: 18,
        grid: Grid::Eight(["1g.35gb", "1g.70gb", "2g.70gb", "3g.139gb", "4g.139gb", "7g.278gb"]),
    },
    Row {
        name: "l4",
        products: &["NVIDIA-L4"],
        memory: "24Gi",
        compute_units: 58,
        gpus_per_node: 4,
        nvlink_nodes: 1,
        grid: Grid::None,
    },
    Row {
        name: "l40",
        products: &["NVIDIA-L40"],
        memory: "48Gi",
        compute_units: 142,
        gpus_per_node: 8,
        nvlink_nodes: 1,
        grid: Grid::None,
    },
    Row {
        name: "l40s",
        products: &["NVIDIA-L40S*"],
        memory: "48Gi",
        compute_units: 142,
        gpus_per_node: 8,
        nvlink_nodes: 1,
        grid: Grid::None,
    },
    Row {
        name: "rtx-pro-6000",
        products: &["NVIDIA-RTX-PRO-6000-Blackwell*"],
        memory: "96Gi",
        compute_units: 188,
        gpus_per_node: 8,
        nvlink_nodes: 1,
        grid: Grid::Twelve(["1g.24gb", "2g.48gb", "4g.96gb"]),
    },
    Row {
        name: "v100",
        products: &["Tesla-V100-SXM2-32GB*", "Tesla-V100-SXM3-32GB*", "Tesla-V100-PCIE-32GB"],
        memory: "32Gi",
        compute_units: 80,
        gpus_per_node: 8,
        nvlink_nodes: 1,
        grid: Grid::None,
    },
    Row {
        name: "t4",
        products: &["NVIDIA-T4", "Tesla-T4"],
        memory: "16Gi",
        compute_units: 40,
        gpus_per_node: 4,
        nvlink_nodes: 1,
        grid: Grid::None,
    },
];

impl Row {
    fn spec(&self) -> AcceleratorClassSpec {
        AcceleratorClassSpec {
            resource: NVIDIA_GPU.to_owned(),
            product_label: PRODUCT_LABEL.to_owned(),
            products: self.products.iter().map(|product| (*product).to_owned()).collect(),
            memory: Some(Quantity(self.memory.to_owned())),
            compute_units: Some(self.compute_units),
            gpus_per_node: self.gpus_per_node,
            nvlink_nodes: self.nvlink_nodes,
            mig: self.grid.expand(),
            price_per_hour: None,
        }
    }
}

impl Grid {
    fn expand(self) -> Option<MigGrid> {
        // Compute slices, memory slices, legal starts.
        type Shape = (u32, u32, &'static [u32]);
        const EIGHT: [Shape; 6] = [
            (1, 1, &[0, 1, 2, 3, 4, 5, 6]),
            (1, 2, &[0, 2, 4, 6]),
            (2, 2, &[0, 2, 4]),
            (3, 4, &[0, 4]),
            (4, 4, &[0]),
            (7, 8, &[0]),
        ];
        const FOUR: [Shape; 3] = [(1, 1, &[0, 1, 2, 3]), (2, 2, &[0, 2]), (4, 4, &[0])];
        const TWELVE: [Shape; 3] = [(1, 3, &[0, 3, 6, 9]), (2, 6, &[0, 6]), (4, 12, &[0])];
        let grid = |memory_slices, compute_slices, names: &[&str], shapes: &[Shape]| MigGrid {
            memory_slices,
            compute_slices,
            profiles: names
                .iter()
                .zip(shapes)
                .map(|(name, (compute, memory, starts))| MigProfile {
                    name: (*name).to_owned(),
                    compute: *compute,
                    memory: *memory,
                    starts: starts.to_vec(),
                    max: starts.len() as u32,
                })
                .collect(),
        };
        match self {
            Self::None => None,
            Self::Eight(names) => Some(grid(8, 7, &names, &EIGHT)),
            Self::Four(names) => Some(grid(4, 4, &names, &FOUR)),
            Self::Twelve(names) => Some(grid(12, 4, &names, &TWELVE)),
        }
    }
}

/// The built-in class of this name.
pub fn get(name: &str) -> Option<AcceleratorClassSpec> {
    CATALOGUE.iter().find(|row| row.name == name).map(Row::spec)
}

/// All built-in classes with their names, in the order of their names in the source: older cards first.
pub fn all() -> Vec<(&'static str, AcceleratorClassSpec)> {
    CATALOGUE.iter().map(|row| (row.name, row.spec())).collect()
}

/// Name of the built-in class of a node with this `nvidia.com/gpu.product`.
pub fn of_product(product: &str) -> Option<&'static str> {
    CATALOGUE.iter().find(|row| row.spec().matches(product)).map(|row| row.name)
}
