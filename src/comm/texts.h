// SPDX-License-Identifier: Apache-2.0
// The texts of communication errors, which speak of world ranks, and small helpers on lists of
// ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace shard {

/// "rank 3" or "ranks 0, 2"
std::string rank_list(std::vector<int> ranks);

std::string timeout_text(double seconds, uint64_t operation, std::vector<int> arrived,
                         std::vector<int> missing);
/// `calls`: what was called, and by which world ranks.
std::string disagreement_text(uint64_t operation,
                              const std::map<std::string, std::vector<int>>& calls);
/// `waits`: who waits in what for whom.
std::string deadlock_text(const std::string& waits);
/// Sender and receiver know different sizes or dtypes.
std::string piece_mismatch_text(int receiver, const std::string& expected, int sender,
                                const std::string& got);
/// Sender and receiver know different numbers of messages.
std::string lost_message_text(uint64_t operation, int receiver, size_t expected, int sender,
                              size_t sent, const std::string& other_side);

/// What split() gathers from every rank, and the ranks (old numbering) that share `color`, ordered
/// by (key, rank).
std::string split_bytes(int color, int key);
std::vector<int> split_members(const std::vector<std::string>& gathered, int color);

}  // namespace shard
