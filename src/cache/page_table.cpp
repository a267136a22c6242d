// SPDX-License-Identifier: Apache-2.0
#include "cache/page_table.h"

#include <algorithm>

#include "base/check.h"

namespace kv2 {

PageTable::PageTable(int64_t n_pages) {
  for (Row& r : rows_) {
    r.slots.assign(n_pages, -1);
    r.changed = {0, n_pages};
  }
}

int32_t PageTable::slot(Form form, int64_t page) const {
  KV2_CHECK(page >= 0 && page < n_pages(), "page {} of {}", page, n_pages());
  return row(form).slots[page];
}

void PageTable::set(Form form, int64_t page, int32_t slot) {
  KV2_CHECK(page >= 0 && page < n_pages(), "page {} of {}", page, n_pages());
  Row& r = row(form);
  r.slots[page] = slot;
  if (r.changed.size() == 0) r.changed = {page, page};
  r.changed.first = std::min(r.changed.first, page);
  r.changed.last = std::max(r.changed.last, page + 1);
}

void PageTable::clear() {
  for (Row& r : rows_) {
    std::fill(r.slots.begin(), r.slots.end(), -1);
    r.changed = {0, n_pages()};
  }
}

PageTable::Range PageTable::take_changes(Form form) {
  Range r{};
  std::swap(r, row(form).changed);
  return r;
}

}  // namespace kv2
