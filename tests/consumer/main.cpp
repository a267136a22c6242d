// What a stranger's program does with an installed kv2: public headers only.
#include <kv2/cache.h>
#include <kv2/calibrate.h>
#include <kv2/engine.h>
#include <kv2/error.h>
#include <kv2/quant.h>
#include <kv2/tensor.h>

#include <cstdio>

int main() {
  const auto spec = kv2::CacheSpec::parse("oscar2:clip-k=0.96,clip-v=0.92");
  std::printf("%s\n", spec.describe().c_str());
  try {
    kv2::CacheSpec::parse("no-such-method");
  } catch (const kv2::Error& e) {
    return e.code() == kv2::ErrorCode::BadArgument ? 0 : 1;
  }
  return 1;
}
