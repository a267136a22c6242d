// SPDX-License-Identifier: Apache-2.0
// The ops that work head by head: per-head matrices, and pages written and demoted. Tasks are (rows or page,
// KV head); none depends on another.
#pragma once

#include <vector>

#include "base/threads.h"
#include "cpu/scratch.h"
#include "ops/params.h"

namespace kv2::cpu {

/// Bytes of scratch per worker for these ops.
size_t head_op_scratch(int head_dim);
/// The same for demoting to another format than int2: K's rows of all heads of a page.
size_t codec_scratch(const KvShape& shape);

void transform(ThreadTeam& team, WorkerScratch& scratch, const TransformParams& p);
void append(ThreadTeam& team, const AppendParams& p);
void demote(ThreadTeam& team, WorkerScratch& scratch, const DemoteParams& p);

}  // namespace kv2::cpu
