// SPDX-License-Identifier: Apache-2.0
#include "comm/texts.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace shard {

std::string rank_list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty()) return "no rank";
  return c10::str(ranks.size() == 1 ? "rank " : "ranks ", c10::Join(", ", ranks));
}

std::string timeout_text(double seconds, uint64_t operation, std::vector<int> arrived,
                         std::vector<int> missing) {
  return c10::str("timed out after ", seconds, " s in operation ", operation, ": got ",
                  rank_list(std::move(arrived)), "; missing ", rank_list(std::move(missing)),
                  ". See what the missing ranks do, or raise SHARD_TIMEOUT.");
}

std::string disagreement_text(uint64_t operation,
                              const std::map<std::string, std::vector<int>>& calls) {
  std::string text = c10::str("ranks disagree about operation ", operation, ": got ");
  bool is_first = true;
  for (const auto& [call, ranks] : calls) {
    text += c10::str(is_first ? "" : ", ", call, " on ", rank_list(ranks));
    is_first = false;
  }
  return text +
         "; expected the same call, sizes, dtype and root everywhere. Look for a branch on "
         "rank-dependent data before this call.";
}

std::string deadlock_text(const std::string& waits) {
  return c10::str("ranks wait for each other: got ", waits,
                  "; expected the same calls in the same order on every rank. Look for a rank that "
                  "takes another branch.");
}

std::string piece_mismatch_text(int receiver, const std::string& expected, int sender,
                                const std::string& got) {
  return c10::str("got ", got, " from rank ", sender, "; rank ", receiver, " expected ", expected,
                  ". Give the receiving tensor the sizes and dtype of what is sent.");
}

std::string lost_message_text(uint64_t operation, int receiver, size_t expected, int sender,
                              size_t sent, const std::string& other_side) {
  return c10::str("messages from rank ", sender, " to rank ", receiver, " in operation ", operation,
                  ": got ", sent, " sent; expected ", expected, " (the other side is in ",
                  other_side, "). List every message on both sides.");
}

std::string split_bytes(int color, int key) {
  const std::array<int, 2> both{color, key};
  std::string bytes(sizeof both, '\0');
  std::memcpy(bytes.data(), both.data(), sizeof both);
  return bytes;
}

std::vector<int> split_members(const std::vector<std::string>& gathered, int color) {
  std::vector<std::pair<int, int>> members;  // key, rank
  for (size_t r = 0; r < gathered.size(); ++r) {
    std::array<int, 2> both{};
    std::memcpy(both.data(), gathered[r].data(), sizeof both);
    if (both[0] == color) members.emplace_back(both[1], static_cast<int>(r));
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& member : members) ranks.push_back(member.second);
  return ranks;
}

}  // namespace shard
