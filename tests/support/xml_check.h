#pragma once

#include <string>
#include <vector>

namespace sluice::test {

struct XmlElement {
  std::string name;
  std::string attributes;  // as written
  std::string text;        // up to its first child
};

// Why `document` is no well-formed XML; empty where it is. Knows what our own writers use: elements, quoted
// attributes, text, the five named entities; no comments, declarations or CDATA.
std::string xml_fault(const std::string& document, std::vector<XmlElement>* elements = nullptr);

}  // namespace sluice::test
