// SPDX-License-Identifier: Apache-2.0
// main() of every test executable: GoogleTest's own, plus `--file NAME`, which runs the tests
// defined in NAME.cpp. CTest calls it so (one process a file), hence a new TEST needs no list
// anywhere.
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <string>

namespace {

// Googletest's filter for the tests defined in source file `stem`.cpp; empty when there are none.
std::string filter_of_file(const std::string& stem) {
  std::string filter;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (std::filesystem::path(test.file()).stem() != stem) continue;
      filter += std::string(filter.empty() ? "" : ":") + test.test_suite_name() + "." + test.name();
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::string(argv[1]) == "--file") {
    const std::string filter = filter_of_file(argv[2]);
    if (filter.empty()) {
      std::cerr << "[test] no tests in " << argv[2] << ".cpp\n";
      return 1;
    }
    GTEST_FLAG_SET(filter, filter);
  }
  return RUN_ALL_TESTS();
}
