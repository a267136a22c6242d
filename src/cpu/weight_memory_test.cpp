// SPDX-License-Identifier: Apache-2.0
// Memory of weights: what is released is given out again, to nobody else, and does not keep its chunk.
#include "cpu/weight_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace kv2::cpu {
namespace {

constexpr size_t kPiece = size_t{3} << 20;  // ten of a chunk of 32 MiB

TEST(WeightMemory, AReleasedPieceIsGivenOutAgain) {
  WeightMemory memory(HugePages::On);
  std::vector<std::shared_ptr<std::byte>> pieces;
  for (int i = 0; i < 25; i++) pieces.push_back(memory.take(kPiece));
  for (auto& piece : pieces) {  // one by one, as Model::absorb_values makes W_o anew
    std::byte* const before = piece.get();
    piece.reset();
    EXPECT_NE(memory.take(kPiece - 64).get(), before) << "of another size";
    piece = memory.take(kPiece);
    EXPECT_EQ(piece.get(), before);
  }
}

TEST(WeightMemory, PiecesDoNotOverlap) {
  WeightMemory memory(HugePages::On);
  std::vector<std::shared_ptr<std::byte>> pieces;
  for (int i = 0; i < 12; i++) pieces.push_back(memory.take(kPiece));
  for (const size_t i : {2, 7, 11}) pieces[i].reset();
  for (const size_t i : {11, 2, 7}) pieces[i] = memory.take(kPiece);
  pieces.push_back(memory.take(kPiece));
  for (size_t i = 0; i < pieces.size(); i++) std::memset(pieces[i].get(), static_cast<int>(i), kPiece);
  for (size_t i = 0; i < pieces.size(); i++) {
    EXPECT_EQ(pieces[i].get()[0], std::byte(i));
    EXPECT_EQ(pieces[i].get()[kPiece - 1], std::byte(i));
  }
}

TEST(WeightMemory, PiecesOutliveIt) {
  std::shared_ptr<std::byte> piece;
  {
    WeightMemory memory(HugePages::On);
    memory.take(kPiece).reset();
    piece = memory.take(kPiece);
  }
  std::memset(piece.get(), 1, kPiece);
}

TEST(WeightMemory, APieceOfAReleasedChunkIsNotGivenOut) {  // the address sanitizer would see it
  WeightMemory memory(HugePages::On);
  std::vector<std::shared_ptr<std::byte>> pieces;
  for (int i = 0; i < 10; i++) pieces.push_back(memory.take(kPiece));
  const std::shared_ptr<std::byte> next = memory.take(kPiece);  // of another chunk
  pieces.clear();
  for (int i = 0; i < 20; i++) {
    pieces.push_back(memory.take(kPiece));
    EXPECT_NE(pieces.back(), next);
    std::memset(pieces.back().get(), 1, kPiece);
  }
}

}  // namespace
}  // namespace kv2::cpu
