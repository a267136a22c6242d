// SPDX-License-Identifier: Apache-2.0
#include "eval/word_list.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/check.h"
#include "eval/needle_text.h"
#include "text/text_file.h"

namespace kv2 {
namespace {

constexpr size_t kFewest = 100;  // 10,000 keys of two words: more than the needles of most haystacks

const char* const kBuiltIn =
    "acorn acre actor agent album alley amber anchor angle apple apron arch arena arrow artist attic autumn "
    "badge baker bamboo banner barley barn basket beach beacon beam bell bench berry birch bishop blade "
    "blanket blossom board bolt bonnet border bottle branch brass bread breeze brick bridge bronze brook "
    "broom brush bucket bundle burrow butter button cabin cable cactus camel candle canoe canvas canyon "
    "captain carpet carrot castle cattle cavern cedar cellar chain chair chalk channel chapel charcoal "
    "cherry "
    "chest chimney cider circle citrus clay clever cliff clock cloth cloud clover coast cobalt coffee collar "
    "comet compass copper coral cotton cottage county crane crater creek crown crystal curtain cypress "
    "dagger "
    "dairy daisy dawn deer delta desert diamond dinner dolphin donkey dragon drawer dream drum eagle eastern "
    "echo elbow ember emerald engine estate evening fabric falcon family farmer feather fence fern ferry "
    "fiddle field finger fire flag flame flask flint flour flute forest fossil fountain fox frost fruit "
    "gallery garden garlic gentle ginger glacier glass glove golden goose grain granite grape grass gravel "
    "guitar hammer harbor harvest hazel helmet heron hill honey horizon horn horse hotel humble island ivory "
    "jacket jasper jungle kettle kitchen kitten ladder lagoon lamp lantern laurel leather lemon letter lily "
    "linen lion lizard lobster locket lumber magnet mango maple marble market marsh meadow medal melon "
    "meteor "
    "mill mint mirror modest monk morning moss mountain museum music needle nest nickel noble northern novel "
    "oak oasis ocean olive onion opal orange orchard otter oyster paddle palace panel paper parade parcel "
    "parrot pasture pebble pencil pepper piano pillow pilot pine planet plaza plum pocket poem pond poplar "
    "porch potter prairie prism pumpkin purple quartz quiet rabbit raft ranch raven ribbon river robin "
    "rocket "
    "rose ruby saddle saffron sailor salmon sandal satin scarlet school shadow shell shelter silent silver "
    "sketch sparrow spider spring spruce stable station steel stone storm summit sunset swan table tailor "
    "temple thistle thunder ticket tiger timber torch tower trumpet tulip tunnel turtle valley velvet "
    "village "
    "violet walnut wander warden water weaver western whale wheat willow window winter wolf yellow zebra";

WordList clean(std::vector<std::string> words, const std::string& source) {
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  // A key of the frame's words would read like the frame.
  const std::vector<std::string> frame = frame_words();
  std::erase_if(
      words, [&](const std::string& w) { return std::find(frame.begin(), frame.end(), w) != frame.end(); });
  if (words.size() < kFewest)
    throw_error(ErrorCode::BadArgument, "word list {}: {} usable words, {} are needed at least", source,
                words.size(), kFewest);
  return {std::move(words), source};
}

}  // namespace

WordList WordList::read(const std::string& path) {
  std::istringstream lines(read_text_file(path, size_t{1} << 26));
  std::vector<std::string> words;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream pieces(line);
    for (std::string word; pieces >> word;) words.push_back(word);
  }
  return clean(std::move(words), path);
}

WordList WordList::built_in() {
  std::istringstream pieces(kBuiltIn);
  std::vector<std::string> words;
  for (std::string word; pieces >> word;) words.push_back(word);
  return clean(std::move(words), "built-in words");
}

WordList WordList::choose(const std::string& path, const std::string& model) {
  if (!path.empty()) return read(path);
  const std::string own = (std::filesystem::path(model) / "words.txt").string();
  return std::filesystem::exists(own) ? read(own) : built_in();
}

}  // namespace kv2
