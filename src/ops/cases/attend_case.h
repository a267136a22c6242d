// SPDX-License-Identifier: Apache-2.0
// AttendCase: queries of a ragged batch over a PageWorld. The query of a position is the same in whatever
// batch it comes, so that one result can be computed in many ways.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ops/cases/page_world.h"

namespace kv2::cases {

/// Where pages come from: imported before the first step, or every step appends its rows and demotes what its
/// queries read packed, as a model's layer does; rows not yet written are NaN then.
enum class Feed : uint8_t { Imported, Appended };

/// What all ways of computing one result share; made once, since making it costs more than attending.
struct AttendInputs {
  std::shared_ptr<const PageWorld> world;
  std::vector<float> queries;  // of all positions of all sequences, [Σ n_tokens, n_heads, head_dim]
};

struct AttendCase {
  std::string name;
  WorldSpec world;
  std::vector<Segment> segments;
  float soft_cap = 0, query_sigma = 1.0f;
  bool nan_query = false;

  std::string full_name() const;  // with shape and windows
  OpCase build() const;
  AttendInputs inputs() const;
  /// The outputs of all positions of all sequences in order, computed in the given steps; 0 where no step
  /// asks.
  OpOutput in_steps(Backend& backend, const AttendInputs& inputs,
                    const std::vector<std::vector<Segment>>& steps, Feed feed) const;

 private:
  size_t row_values() const { return static_cast<size_t>(world.shape.n_heads) * world.shape.head_dim; }
  float softmax_scale() const;
  double bound() const;
  std::vector<float> queries(const std::vector<Segment>& rows) const;  // [n_rows, n_heads, head_dim]
  void append_and_demote(Backend& backend, const PageWorld& made, const DevicePages& pages,
                         const std::vector<Segment>& step, std::set<int32_t>& packed_slots) const;
};

}  // namespace kv2::cases
