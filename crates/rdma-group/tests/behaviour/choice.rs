//! The choice between the algorithms of a collective.

use rdma_group::simulation::{Algorithm, Blocks, Collective};

const PAGE: &str = include_str!("../../../../docs/groups.md");

/// Returns the collectives that have two algorithms, for buffers of that many bytes, in the order of the page.
fn choices(size: usize, len: usize) -> [Collective; 3] {
    let (is_commutative, blocks) = (true, Blocks::even(len, size));
    [
        Collective::AllGather { blocks: blocks.clone() },
        Collective::AllReduce { is_commutative },
        Collective::ReduceScatter { is_commutative, blocks },
    ]
}

#[test]
fn the_page_has_the_lengths_from_which_ranks_form_a_ring() {
    let title = "| ranks | `all_gather` | `all_reduce` | `reduce_scatter` |\n|---|---|---|---|\n";
    let (_, table) = PAGE.split_once(title).unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    for row in table.lines() {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().replace(',', "")).collect();
        let size: usize = cells[1].parse().unwrap();
        for (column, cell) in cells[2..5].iter().enumerate() {
            let chosen = |len: usize| choices(size, len)[column].algorithm(size, len, 1);
            if cell == "any" {
                assert_eq!(chosen(8 * size), Algorithm::Ring, "{row}");
                continue;
            }
            let bytes = cell.strip_suffix(" KiB").unwrap().parse::<usize>().unwrap() << 10;
            assert_eq!(chosen(bytes - bytes / 20), Algorithm::FewRounds, "{row}");
            assert_eq!(chosen(bytes + bytes / 20), Algorithm::Ring, "{row}");
        }
    }
    assert!(table.lines().count() >= 5, "{table}");
}

/// The benchmarks of two ranks measure 8 bytes and 1 MiB.
#[test]
fn two_ranks_double_up_to_64_kib_and_form_a_ring_for_more() {
    let all_reduce = Collective::AllReduce { is_commutative: true };
    let short = [0, 8, 4 << 10, 64 << 10].map(|bytes| (bytes, Algorithm::FewRounds));
    let long = [(64 << 10) + 16, 128 << 10, 1 << 20].map(|bytes| (bytes, Algorithm::Ring));
    for (bytes, expected) in short.into_iter().chain(long) {
        for element_bytes in [1, 4, 8] {
            assert_eq!(all_reduce.algorithm(2, bytes / element_bytes, element_bytes), expected);
        }
    }
}

#[test]
fn a_reduction_with_a_function_never_forms_a_ring() {
    for size in [1, 2, 3, 1024] {
        for len in [0, 1, usize::MAX] {
            let (is_commutative, blocks) = (false, Blocks::even(len, size));
            let all_reduce = Collective::AllReduce { is_commutative };
            let reduce_scatter = Collective::ReduceScatter { is_commutative, blocks };
            for collective in [all_reduce, reduce_scatter] {
                assert_eq!(collective.algorithm(size, len, 8), Algorithm::FewRounds);
            }
        }
    }
}

#[test]
fn the_longest_buffers_are_exchanged_around_rings() {
    for size in [2, 3, 65_536] {
        for collective in choices(size, usize::MAX) {
            assert_eq!(collective.algorithm(size, usize::MAX, 8), Algorithm::Ring);
        }
    }
}
