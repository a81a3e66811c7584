"""Where the cases of Comdb2's suite for physical replication are: relays, upstreams, pushing, feeds.

Each row has a story in real processes, on directories and in a bucket, and the tests of what it consists of.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_STORIES = "scenario/test_tiers_processes.py::"
FIND = f"{_STORIES}test_readers_find_a_relay_move_and_end_equal"
PUSH = f"{_STORIES}test_places_below_are_filled_by_one_pusher_that_may_be_killed"
FEED = f"{_STORIES}test_a_feed_that_is_killed_says_at_both_places_what_happened_once"
PAST = f"{_STORIES}test_another_past_a_lost_position_and_a_half_copy_are_told_and_harm_nobody"
REGISTRIES = f"{_STORIES}test_a_second_registry_serves_and_a_relay_takes_the_place_of_a_lost_farm"
PRUNED = f"{_STORIES}test_who_needs_what_was_pruned_reads_where_it_is_kept"
CASES = {
    "generated_tests, compare_end_lsns, verify_blkseq, bulkimport": (
        FIND,
        "scenario/test_relay.py::test_a_relay_has_the_same_bytes_and_serves_in_the_farms_stead",
        "fault/test_killed_tree.py::test_a_tree_survives_random_kills",
        "fault/test_killed_tree.py::test_a_tree_of_eight_in_a_bucket_survives_random_kills",
    ),
    "require_recent_heartbeat": (
        FIND,
        "unit/test_choice.py::test_require_recent_heartbeat",
        "scenario/test_tiers.py::test_who_is_silent_is_no_candidate_and_an_hourly_relay_is",
    ),
    "phys_rep_nomatch": (
        PRUNED,
        "unit/test_choice.py::test_phys_rep_nomatch",
    ),
    "verify_fanout_overrides, fanout_myoverride": (
        FIND,
        "unit/test_choice.py::test_verify_fanout_overrides",
        "scenario/test_tiers.py::test_slots_above_a_lowered_fan_out_are_void",
        "scenario/test_tiers.py::test_defect_a_many_who_claim_at_once_get_no_more_slots_than_there_are",
    ),
    "physrep_max_pending": (
        FIND,
        "unit/test_choice.py::test_physrep_max_pending",
        "unit/test_upstreams.py::test_a_hundred_pending_registrations_are_read_and_nobody_waits_for_them",
    ),
    "match_overlap": (
        PRUNED,
        "unit/test_choice.py::test_match_overlap",
    ),
    "verify_log_cursor_gen, physrep_truncate": (
        PAST,
        "scenario/test_relay.py::test_a_farm_that_was_rolled_back_is_refused",
        "scenario/test_switch_sites.py::test_a_bad_past_is_undone_where_a_relay_keeps_it",
        "conformance/test_target.py::test_log_that_was_pruned_and_another_past",
    ),
    "non_existent_record, tranlog_timeout, tranlog_blocklsn": (
        PAST,
        "conformance/test_target.py::test_log_that_was_pruned_and_another_past",
        "unit/test_follow.py::test_every_round_waits_for_the_farm_and_ends_with_what_does_not_pass",
        "unit/test_news.py::test_a_new_log_file_ends_the_wait",
        "unit/test_news.py::test_a_signal_ends_the_wait",
    ),
    "revconn_source_cluster, _class, verify_revconn_fix, _populate_error, _retry": (
        PUSH,
        "unit/test_upstreams.py::test_pushes_mean_readers_by_class_host_and_site",
        "scenario/test_pushing.py::test_one_line_serves_a_class_and_a_bad_entry_nobody",
    ),
    "clustered_revconn": (
        PUSH,
        "scenario/test_pushing.py::test_one_pusher_at_a_time_writes_to_a_place",
    ),
    "revconn_leak_test, revconn_latency": (
        PUSH,
        "scenario/test_pushing.py::test_a_list_is_read_and_places_are_dialled_as_often_as_is_set",
    ),
    "revconn_metadb_failure_test": (PUSH,),
    "physrep_allowed_source, rtcpu_source, revconn_rtcpu": (
        FIND,
        "unit/test_choice.py::test_physrep_allowed_source_by_class",
        "unit/test_choice.py::test_physrep_allowed_source_is_neither_the_reader_nor_below_it_nor_marked_down",
        "scenario/test_pushing.py::test_a_farm_that_was_taken_out_pushes_to_nobody",
    ),
    "multimeta, test_intermediate_physrep_active_status, verify_alt_metadb_system_table": (
        REGISTRIES,
        "unit/test_attaching.py::test_multimeta",
        "unit/test_attaching.py::test_intermediate_physrep_active_status",
        "unit/test_attaching.py::test_verify_alt_metadb_system_table",
    ),
    "metadb_sql_count, no_cached_metadb_connections": (
        "unit/test_choice.py::test_keepalives_and_rounds_of_an_idle_process_keep_their_bound",
        "scenario/test_requests.py::test_defect_f_an_idle_follower_asks_six_times_a_minute_at_most",
    ),
    "incoherent_test, incoherent_master, physrep_block_writes_correct_rcode, test_sp_no_readonly, nophyswrite": (
        FIND,
        "conformance/test_target.py::test_replicated_tables_are_guarded_unless_unlocked",
        "scenario/test_tiers.py::test_readers_spread_over_slots_move_from_what_fails_and_hold_when_the_registry_is_away",
    ),
    "phys_rep_firstfile_rollout, verify_tunable_defaults, keepalive_v2": (
        FIND,
        "unit/test_registry.py::test_firstfile_rollout_a_registration_without_newer_keys_is_read",
        "unit/test_registry.py::test_keepalive_v2_a_key_that_nobody_knows_is_refused_by_name",
        "unit/test_registry.py::test_verify_tunable_defaults_a_setting_that_the_file_lacks_has_its_default",
        "unit/test_choice.py::test_settings_come_back_and_wrong_ones_are_refused",
    ),
    "physrep_delfiles": (
        PRUNED,
        "scenario/test_tiers.py::test_defect_d_pruning_of_each_place_waits_for_its_own_children",
    ),
    "log_trigger": (
        FEED,
        "scenario/test_feed.py::test_a_file_has_every_change_once_and_in_order",
        "scenario/test_feed.py::test_defect_e_what_is_too_much_is_dropped_and_said",
        "scenario/test_feed.py::test_tables_are_chosen_by_patterns",
        "scenario/test_feed.py::test_values_arrive_exactly_or_as_text",
    ),
    "physrep_ignore_table": (
        FEED,
        "scenario/test_behind_and_partial.py::test_an_ignored_table_is_not_there_and_not_read",
    ),
    "verify_generation, verify_non_ignored_reptype": (PAST, REGISTRIES),
}
# Requests are counted where they are made: a test that waits for a minute would say no more.
WITHOUT_STORY = {"metadb_sql_count, no_cached_metadb_connections"}
# Not applicable: verify_connection_count and check_metadb_memstat (nobody connects, and a registry is files).

# What the original does wrong.
DEFECTS = {
    "a": (
        "unit/test_choice.py::test_defect_a_a_fan_out_of_one_admits_one",
        "scenario/test_tiers.py::test_defect_a_many_who_claim_at_once_get_no_more_slots_than_there_are",
    ),
    "b": ("unit/test_choice.py::test_defect_b_tiers_begin_with_the_origin_and_end_in_circles",),
    "c": ("unit/test_choice.py::test_defect_c_stuck_compares_positions_as_tuples",),
    "d": ("scenario/test_tiers.py::test_defect_d_pruning_of_each_place_waits_for_its_own_children",),
    "e": ("scenario/test_feed.py::test_defect_e_what_is_too_much_is_dropped_and_said",),
    "f": ("scenario/test_requests.py::test_defect_f_an_idle_follower_asks_six_times_a_minute_at_most",),
}


def test_every_case_has_a_story() -> None:
    assert {row for row, places in CASES.items() if not any(_STORIES in place for place in places)} == WITHOUT_STORY


@pytest.mark.parametrize("where", sorted({where for places in (CASES | DEFECTS).values() for where in places}))
def test_every_case_is_there(where: str) -> None:
    file, _, name = where.partition("::")
    assert f"def {name}(" in (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
