// SPDX-License-Identifier: Apache-2.0
// PageTable: one sequence's pages: per page index the slot of its full form and of its packed form, -1 where
// not held. Host memory; it remembers which entries changed so that the device's copy can be brought up to
// date.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace kv2 {

enum class Form : uint8_t { Full, Packed };
inline constexpr std::array<Form, 2> kForms{Form::Full, Form::Packed};

/// A page's slots, -1 where it has no such form.
struct PageForms {
  int32_t full = -1, packed = -1;
  int32_t of(Form form) const { return form == Form::Full ? full : packed; }
};

class PageTable {
 public:
  explicit PageTable(int64_t n_pages);

  int64_t n_pages() const { return static_cast<int64_t>(rows_[0].slots.size()); }
  int32_t slot(Form form, int64_t page) const;
  PageForms forms(int64_t page) const { return {slot(Form::Full, page), slot(Form::Packed, page)}; }
  void set(Form form, int64_t page, int32_t slot);
  void clear();

  std::span<const int32_t> slots(Form form) const { return row(form).slots; }

  struct Range {
    int64_t first = 0, last = 0;  // [first, last)
    int64_t size() const { return last - first; }
  };
  /// The entries that may have changed since the last call; at first, all of them.
  Range take_changes(Form form);

 private:
  struct Row {
    std::vector<int32_t> slots;
    Range changed;
  };
  const Row& row(Form form) const { return rows_[static_cast<size_t>(form)]; }
  Row& row(Form form) { return rows_[static_cast<size_t>(form)]; }

  std::array<Row, 2> rows_;
};

}  // namespace kv2
