#pragma once

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {

void embedding(const Embedding& instruction, const Step& step, Worker& worker);
void rope_angles(const RopeAngles& instruction, const Step& step, Worker& worker);
void rms_norm(const RmsNorm& instruction, const Step& step, Worker& worker);
void activate_and_mul(const ActivateAndMul& instruction, const Step& step, Worker& worker);
void rope(const Rope& instruction, const Step& step, Worker& worker);

}  // namespace octavo::OCTAVO_ISA
