// SPDX-License-Identifier: Apache-2.0
// How attention is cut into tasks. With many tiles a task is a tile and folds its runs one after the other;
// with few a task is some runs of a tile, and the partials are folded afterwards in the same order: the same
// bits.
#include "cpu/attend.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cpu/attend_kernel.h"
#include "cpu/head_page.h"
#include "cpu/packed_kernel.h"
#include "quant/page_codec.h"

namespace kv2::cpu {

/// n_queries rows of the batch from first_row on: consecutive positions of one sequence in one page, one KV
/// head.
struct QueryTile {
  const SequenceView* sequence;
  int kv_head, first_row, n_queries;
  int64_t first_pos;
  bool reads_full;  // every page in full (PrefillPolicy::Exact)

  int query_page() const { return static_cast<int>(first_pos / kPageTokens); }
};

namespace {

constexpr int kRunPages = 16;  // part of the arithmetic: where partials are cut
constexpr int kDirectRows =
    12;  // up to this many rows read a full page as it is; more of them expand it first
constexpr int kTileRows = 128;  // (query, head) rows of a tile: amortises the expansion of a page
// Scratch for the partials of split tiles; never less than what three runs of every tile take.
constexpr size_t kPartialBytes = size_t{4} << 20;

int n_runs(const QueryTile& tile) {
  return tile.query_page() / kRunPages + 1;
}
int tile_queries(const KvShape& shape) {
  return std::clamp(kTileRows / shape.q_per_kv(), 1, kPageTokens);
}
int tile_rows(const KvShape& shape) {
  return tile_queries(shape) * shape.q_per_kv();
}
size_t partial_floats(const KvShape& shape) {
  return Partial::floats(tile_rows(shape), shape.head_dim);
}

/// The layout with the most groups, for planning: one per 16 channels.
size_t coded_floats(const KvShape& shape) {
  return CodedQueries::floats(tile_rows(shape), {shape.head_dim, 16});
}

/// One worker's scratch: half a head page as floats, the same as rows (while keys of another format than int2
/// are transposed), a tile's queries, their weights, two partials, coded queries.
struct Worker {
  float *half, *rows, *q, *weights, *run, *total, *coded;

  static size_t bytes(const KvShape& shape) {
    const size_t d = static_cast<size_t>(shape.head_dim), rows = static_cast<size_t>(tile_rows(shape));
    return sizeof(float) *
           (2 * kPageTokens * d + rows * (d + kPageTokens) + 2 * partial_floats(shape) + coded_floats(shape));
  }
  Worker(float* memory, const KvShape& shape) {
    const size_t d = static_cast<size_t>(shape.head_dim), rows = static_cast<size_t>(tile_rows(shape));
    half = memory;
    this->rows = half + kPageTokens * d;
    q = this->rows + kPageTokens * d;
    weights = q + rows * d;
    run = weights + rows * kPageTokens;
    total = run + partial_floats(shape);
    coded = total + partial_floats(shape);
  }
};

/// Tiles never cross a page, nor the position where a prompt's exact reading ends: one form per page and
/// tile.
std::vector<QueryTile> cut_tiles(const AttendParams& p) {
  const KvShape& shape = p.kv.layout.shape;
  std::vector<QueryTile> tiles;
  for (const SequenceView& s : p.sequences) {
    for (int at = 0; at < s.n_rows;) {
      const int64_t pos = s.first_pos + at;
      int64_t n = std::min<int64_t>({s.n_rows - at, kPageTokens - pos % kPageTokens, tile_queries(shape)});
      if (pos < s.full_until) n = std::min(n, s.full_until - pos);
      for (int h = 0; h < shape.n_kv_heads; h++)
        tiles.push_back({&s, h, s.first_row + at, static_cast<int>(n), pos, pos < s.full_until});
      at += static_cast<int>(n);
    }
  }
  return tiles;
}

/// One page of a tile, in the form in which its queries read it.
class PageReader {
 public:
  PageReader(const AttendParams& p, const QueryTile& tile, int page, int n_tokens)
      : layout_(p.kv.layout), layer_(p.layer), index_(page), kv_head_(tile.kv_head), n_tokens_(n_tokens) {
    const KvView& kv = p.kv;
    if (!tile.reads_full && kv.rule.packed(tile.query_page(), page)) part_ = &layout_.layer(p.layer);
    const bool packed = part_ != nullptr;
    is_int2_ = packed && part_->int2_heads();
    if (is_int2_) int2_ = layout_.int2(p.layer);
    const int32_t* slots = packed ? tile.sequence->packed_pages : tile.sequence->full_pages;
    const std::byte* pool = packed ? kv.packed : kv.full;
    KV2_CHECK(pool && slots && slots[page] >= 0, "{} page {} not held", packed ? "packed" : "full", page);
    const size_t page_bytes = packed ? kv.layout.packed_page_bytes() : kv.layout.full_page_bytes();
    page_ = pool + static_cast<size_t>(slots[page]) * page_bytes;
    if (full()) page_ += kv.layout.full_offset(p.layer, tile.kv_head);
    if (is_int2_) page_ += kv.layout.packed_offset(p.layer, tile.kv_head);
  }
  /// Whether attention reads the codes as they are.
  bool coded() const { return is_int2_ && reads_codes(int2_); }
  bool full() const { return part_ == nullptr; }
  const std::byte* head_page() const { return page_; }
  /// Worth fetching ahead; 0 where decoding costs far more than the lines it reads.
  size_t bytes() const { return full() ? layout_.full_head_bytes() : is_int2_ ? int2_.bytes() : 0; }
  /// keys [d][64]; rows: scratch of as much again.
  void keys(float* to, float* rows) const {
    const int d = layout_.shape.head_dim;
    if (full()) return expand_full_keys(page_, d, n_tokens_, to);
    if (is_int2_) return expand_packed_keys(page_, int2_, to);
    page_codec(part_->k.codec)
        .decode(layout_.k_side(layer_, index_), page_ + part_->k_offset(), kv_head_, rows);
    for (int t = 0; t < kPageTokens; t++)
      for (int c = 0; c < d; c++) to[c * kPageTokens + t] = rows[t * d + c];
  }
  void values(float* to) const {
    if (full()) return expand_full_values(page_, layout_.shape.head_dim, n_tokens_, to);
    if (is_int2_) return expand_packed_values(page_, int2_, to);
    page_codec(part_->v.codec)
        .decode(layout_.v_side(layer_, index_), page_ + part_->v_offset(), kv_head_, to);
  }

 private:
  const PageLayout& layout_;
  const std::byte* page_;  // of the head where a head page is one piece, else the whole packed page
  const LayerLayout* part_ = nullptr;  // of a packed page
  Int2Layout int2_{};
  int layer_, index_, kv_head_, n_tokens_;
  bool is_int2_;
};

/// Offset of a query's heads in q and out; its q_per_kv rows follow each other.
size_t row_offset(const AttendParams& p, const QueryTile& tile, int query) {
  const KvShape& s = p.kv.layout.shape;
  const size_t row = static_cast<size_t>(tile.first_row) + query;
  return (row * s.n_heads + static_cast<size_t>(tile.kv_head) * s.q_per_kv()) * s.head_dim;
}

void gather_queries(const AttendParams& p, const QueryTile& tile, float* q) {
  const size_t n = static_cast<size_t>(p.kv.layout.shape.q_per_kv()) * p.kv.layout.shape.head_dim;
  for (int i = 0; i < tile.n_queries; i++)
    std::memcpy(q + i * n, p.q + row_offset(p, tile, i), n * sizeof(float));
}

/// Of layers whose codes attention reads as they are; else empty.
Int2Layout coded_layout(const AttendParams& p) {
  const PageLayout& layout = p.kv.layout;
  if (!p.kv.rule.quantized || !layout.packs() || !layout.layer(p.layer).int2_heads()) return {};
  return reads_codes(layout.int2(p.layer)) ? layout.int2(p.layer) : Int2Layout{};
}
TileView tile_view(const AttendParams& p, const QueryTile& tile, const Worker& worker) {
  const KvShape& s = p.kv.layout.shape;
  return {worker.q, worker.weights, tile.n_queries * s.q_per_kv(), s.head_dim, p.softmax_scale, p.soft_cap};
}

/// The tile's queries into worker.q, and coded where pages will be read in codes.
void take_queries(const AttendParams& p, const QueryTile& tile, const Worker& worker) {
  gather_queries(p, tile, worker.q);
  const Int2Layout layout = coded_layout(p);
  if (layout.head_dim > 0 && !tile.reads_full) {
    const TileView view = tile_view(p, tile, worker);
    code_queries(view, layout, CodedQueries::at(worker.coded, view.n_rows, layout));
  }
}

/// Pages [page, end) of a tile that this worker will read; none: it does not know of any.
struct Ahead {
  const QueryTile* tile = nullptr;
  int page = 0, end = 0;
};
/// What a worker will read soon: pages of the tile at hand below `foreseen`, then those of another.
struct Outlook {
  int foreseen;
  Ahead then;
  Ahead from(const QueryTile& tile, int page) const {
    return page < foreseen ? Ahead{&tile, page, foreseen} : then;
  }
};

/// The pages from `page` on that attention reads in codes, as many as one call takes, and what comes after
/// them. A head page is 40 lines or more at an address that no hardware prefetcher foresees: 30 layers at
/// 7,424 tokens took one Zen 4 core 9.5 ms without fetching ahead, 7.9 ms with (November 2026).
PackedPages coded_pages(const AttendParams& p, const QueryTile& tile, int page, int end,
                        const Outlook& outlook) {
  PackedPages pages;
  for (; page < end && pages.n < PackedPages::kMost; page++) {
    const PageReader reader(p, tile, page, kPageTokens);
    if (!reader.coded()) break;
    pages.codes[pages.n++] = reader.head_page();
  }
  Ahead next = outlook.from(tile, page);
  for (int i = 0; i < pages.n && next.page < next.end; i++, next.page++) {
    const PageReader reader(p, *next.tile, next.page, kPageTokens);
    pages.coming[i] = {reader.head_page(), reader.bytes()};
    if (!reader.coded()) break;  // full pages are long and come one at a time
  }
  return pages;
}

/// The partial of one run of pages; worker.q holds the tile's queries.
void attend_run(const AttendParams& p, const QueryTile& tile, int run, const Outlook& outlook,
                const Worker& worker, const Partial& partial) {
  const KvShape& shape = p.kv.layout.shape;
  const int last_page = tile.query_page(), first = run * kRunPages,
            end = std::min(first + kRunPages, last_page + 1);
  const TileView view = tile_view(p, tile, worker);
  const Int2Layout layout = coded_layout(p);
  for (int page = first; page < end;) {
    if (PackedPages coded = coded_pages(p, tile, page, end, outlook); coded.n > 0) {
      coded.first = page == first;
      attend_packed(view, CodedQueries::at(worker.coded, view.n_rows, layout), coded, layout, partial);
      page += coded.n;
      continue;
    }
    const int first_token = static_cast<int>(tile.first_pos % kPageTokens);
    const bool own = page == last_page;  // the queries' own page: each reads up to itself
    const PageReader reader(p, tile, page, own ? first_token + tile.n_queries : kPageTokens);
    const PageView reads{own ? first_token + 1 : 0, shape.q_per_kv(), page == first};
    page++;
    if (reader.full() && view.n_rows <= kDirectRows) {
      ComingPage coming;
      if (const Ahead next = outlook.from(tile, page); next.page < next.end) {
        const PageReader reader_of_next(p, *next.tile, next.page, kPageTokens);
        coming = {reader_of_next.head_page(), reader_of_next.bytes()};
      }
      attend_full(view, reads, reader.head_page(), coming, partial);
      continue;
    }
    reader.keys(worker.half, worker.rows);
    attend_keys(view, reads, worker.half, partial);
    reader.values(worker.half);
    attend_values(view, reads, worker.half, partial);
  }
}

void write_out(const AttendParams& p, const QueryTile& tile, const Partial& partial) {
  const KvShape& s = p.kv.layout.shape;
  for (int i = 0; i < tile.n_queries; i++)
    for (int g = 0; g < s.q_per_kv(); g++)
      finish(partial, i * s.q_per_kv() + g, s.head_dim,
             p.out + row_offset(p, tile, i) + static_cast<size_t>(g) * s.head_dim);
}

size_t split_bytes(int n_threads, const KvShape& shape) {
  const size_t least = 4 * static_cast<size_t>(n_threads) * 3 * partial_floats(shape) * sizeof(float);
  return std::max(kPartialBytes, least);
}

}  // namespace

size_t Attention::scratch_bytes(int n_threads, const KvShape& shape) {
  return static_cast<size_t>(n_threads) * Worker::bytes(shape) + split_bytes(n_threads, shape);
}

void Attention::attend(const AttendParams& p) {
  const KvShape& shape = p.kv.layout.shape;
  if (shape.head_dim % 16 != 0)
    throw_error(ErrorCode::Unsupported, "head_dim {} on the CPU: attention needs a multiple of 16",
                shape.head_dim);
  const std::vector<QueryTile> tiles = cut_tiles(p);
  if (tiles.empty()) return;
  workers_.grow(Worker::bytes(shape));
  partials_.grow(split_bytes(team_.size(), shape));  // as planned, whatever the first batch needs
  const auto longest =
      std::max_element(tiles.begin(), tiles.end(), [](auto& a, auto& b) { return n_runs(a) < n_runs(b); });
  if (team_.size() > 1 && tiles.size() < most_split_tiles() && n_runs(*longest) > 1)
    attend_split(p, tiles);
  else
    attend_whole(p, tiles);
}

void Attention::attend_whole(const AttendParams& p, const std::vector<QueryTile>& tiles) {
  const KvShape& shape = p.kv.layout.shape;
  const int64_t n = static_cast<int64_t>(tiles.size());
  team_.run(n, [&](int64_t i, int w) {
    const QueryTile& tile = tiles[static_cast<size_t>(n - 1 - i)];  // the longest of a prompt first
    const int n_rows = tile.n_queries * shape.q_per_kv();
    const Worker worker(workers_.of<float>(w), shape);
    const Partial total = Partial::at(worker.total, n_rows, shape.head_dim);
    const Partial part = Partial::at(worker.run, n_rows, shape.head_dim);
    take_queries(p, tile, worker);
    const Outlook all{tile.query_page() + 1, {}};
    attend_run(p, tile, 0, all, worker, total);
    for (int run = 1; run < n_runs(tile); run++) {
      attend_run(p, tile, run, all, worker, part);
      merge(total, part, n_rows, shape.head_dim);
    }
    write_out(p, tile, total);
  });
}

// Few queries, many keys: runs are handed out, not tiles. Consecutive runs of a tile form a segment, so that
// a worker takes queries once and foresees the pages of its next run; segments become shorter towards the
// end, so that nobody waits long. Partials live in a scratch of bounded size, hence the waves. Whoever adds
// the last run of a tile merges its partials in page order, exactly as attend_whole does.
void Attention::attend_split(const AttendParams& p, const std::vector<QueryTile>& tiles) {
  const KvShape& shape = p.kv.layout.shape;
  int most_queries = 0, most_runs = 0;
  for (const QueryTile& t : tiles) {
    most_queries = std::max(most_queries, t.n_queries);
    most_runs = std::max(most_runs, n_runs(t));
  }
  const size_t floats = Partial::floats(most_queries * shape.q_per_kv(), shape.head_dim);
  const size_t fits = kPartialBytes / (floats * sizeof(float) * tiles.size());
  const int wave =
      static_cast<int>(std::clamp<size_t>(fits, 3, static_cast<size_t>(std::max(3, most_runs + 1)))) - 1;
  const auto partial = [&](int tile, int slot) {  // slot 0: merged so far; 1..wave: this wave's runs
    float* memory = partials_.as<float>() + (static_cast<size_t>(tile) * (wave + 1) + slot) * floats;
    return Partial::at(memory, tiles[static_cast<size_t>(tile)].n_queries * shape.q_per_kv(), shape.head_dim);
  };
  const auto merge_runs = [&](int tile, int first, int end) {
    const QueryTile& t = tiles[static_cast<size_t>(tile)];
    for (int run = std::max(1, first); run < end; run++)
      merge(partial(tile, 0), partial(tile, run - first + 1), t.n_queries * shape.q_per_kv(), shape.head_dim);
    if (end == n_runs(t)) write_out(p, t, partial(tile, 0));
  };
  for (int first = 0; first < most_runs; first += wave) {
    cut_segments(p, tiles, first, wave);
    next_segment_.store(0, std::memory_order_relaxed);
    const auto claim = [&]() -> const Segment* {
      const size_t i = next_segment_.fetch_add(1, std::memory_order_relaxed);
      return i < segments_.size() ? &segments_[i] : nullptr;
    };
    const auto pages_of_segment = [&](const Segment& s) {
      const QueryTile& tile = tiles[static_cast<size_t>(s.tile)];
      return Ahead{&tile, s.first * kRunPages, std::min(s.end * kRunPages, tile.query_page() + 1)};
    };
    // A worker claims its next segment before it reads one, so that it can ask for its first pages in time.
    team_.run(std::min<int64_t>(team_.size(), static_cast<int64_t>(segments_.size())), [&](int64_t, int w) {
      const Worker worker(workers_.of<float>(w), shape);
      for (const Segment *s = claim(), *after; s; s = after) {
        after = claim();
        const QueryTile& tile = tiles[static_cast<size_t>(s->tile)];
        const Outlook outlook{pages_of_segment(*s).end, after ? pages_of_segment(*after) : Ahead{}};
        take_queries(p, tile, worker);
        for (int run = s->first; run < s->end; run++)
          attend_run(p, tile, run, outlook, worker, partial(s->tile, run == 0 ? 0 : run - first + 1));
        const int n = s->end - s->first;
        if (runs_left_[s->tile].fetch_sub(n, std::memory_order_acq_rel) == n)
          merge_runs(s->tile, first, std::min(first + wave, n_runs(tile)));
      }
    });
  }
}

/// The runs of all tiles from `first` on, `wave` of each at most; what takes longest comes first.
void Attention::cut_segments(const AttendParams& p, const std::vector<QueryTile>& tiles, int first,
                             int wave) {
  const auto end_of = [&](const QueryTile& t) { return std::min(first + wave, n_runs(t)); };
  const auto cost_of = [&](const QueryTile& t, int run, int end) {  // a full page takes two packed ones' time
    int cost = 0;
    for (int page = run * kRunPages; page < std::min(end * kRunPages, t.query_page() + 1); page++)
      cost += !t.reads_full && p.kv.rule.packed(t.query_page(), page) ? 1 : 2;
    return cost;
  };
  int left = 0;
  for (size_t i = 0; i < tiles.size(); i++) {
    const int n = std::max(0, end_of(tiles[i]) - first);
    runs_left_[i].store(n, std::memory_order_relaxed);
    left += n;
  }
  segments_.clear();
  for (size_t i = 0; i < tiles.size(); i++)
    for (int run = first, end = end_of(tiles[i]); run < end;) {
      const int n = std::min(std::max(1, left / (2 * team_.size())), end - run);
      segments_.push_back({static_cast<int>(i), run, run + n, cost_of(tiles[i], run, run + n)});
      run += n;
      left -= n;
    }
  std::sort(segments_.begin(), segments_.end(), [](auto& a, auto& b) { return a.cost > b.cost; });
}

}  // namespace kv2::cpu
