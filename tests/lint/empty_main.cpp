// SPDX-License-Identifier: Apache-2.0
// Main of every link test: a library must link whole with nothing but what it declares.
int main() {
  return 0;
}
