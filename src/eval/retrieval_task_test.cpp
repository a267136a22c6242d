// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval_task.h"

#include <gtest/gtest.h>

#include <functional>

#include "kv2/error.h"

namespace kv2 {
namespace {

std::string refusal(const std::string& text, const std::function<void(std::string_view)>& take) {
  try {
    take(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::BadArgument);
    return e.what();
  }
  ADD_FAILURE() << text << " was taken";
  return "";
}
std::string refusal(const std::string& text) {
  return refusal(text, RetrievalTask::parse);
}

TEST(RetrievalTask, RulerIsItsEightTasks) {
  EXPECT_EQ(tasks_named("ruler").size(), 8u);
  EXPECT_EQ(tasks_named("ruler").back(), RetrievalTask::parse("niah_multiquery"));
  EXPECT_EQ(tasks_named("single:values=uuid"), std::vector{RetrievalTask::parse("single:values=uuid")});
  EXPECT_NE(refusal("nothing", tasks_named).find("there are ruler, single, multi-key"), std::string::npos);
  for (const char* text : {"nothing", "ruler"})  // which is no task
    EXPECT_NE(refusal(text).find("there are single, multi-key"), std::string::npos);
  EXPECT_THROW(tasks_named("ruler:values=uuid"), Error);
}

TEST(RetrievalTask, EveryRowPrintsWhatItParses) {
  for (const RetrievalTaskInfo& t : retrieval_tasks()) {
    const RetrievalTask task = RetrievalTask::parse(t.name);
    EXPECT_EQ(RetrievalTask::parse(task.text()), task) << t.name << " " << task.text();
  }
  EXPECT_EQ(RetrievalTask::parse("niah_multikey_3").text(),
            "multi-key:haystack=needles,keys=uuid,values=uuid");
  EXPECT_EQ(RetrievalTask::parse("multi-key:haystack=needles,keys=uuid,values=uuid"),
            RetrievalTask::parse("niah_multikey_3"));
  EXPECT_EQ(RetrievalTask::parse("niah_single_3").text(), "single:haystack=essay,values=uuid");
  const RetrievalTask two = RetrievalTask::parse("multi-value:n-values=2,n-keys=7,keys=number");
  EXPECT_EQ(two.n_values, 2);
  EXPECT_EQ(two.n_keys, 7);
  EXPECT_EQ(RetrievalTask::parse(two.text()), two);
}

TEST(RetrievalTask, RefusalsListWhatThereIs) {
  EXPECT_NE(refusal("niah_9").find("niah_multikey_3"), std::string::npos);
  EXPECT_NE(refusal("single:haystack=hay").find("noise, essay, needles"), std::string::npos);
  EXPECT_NE(refusal("single:keys=emoji").find("word, number, uuid"), std::string::npos);
  EXPECT_NE(refusal("single:values=7").find("word, number, uuid"), std::string::npos);
  EXPECT_NE(refusal("single:colour=red").find("n-queries"), std::string::npos);
  for (const char* text :
       {"", "single:haystack=needles", "single:n-keys=2", "multi-key:n-values=2", "multi-key:n-queries=2",
        "multi-key:haystack=needles,n-keys=4", "multi-key:n-keys=0", "multi-key:n-keys=x", "multi-key:n-keys",
        "multi-query:n-keys=3,n-queries=4"})
    refusal(text);
}

}  // namespace
}  // namespace kv2
